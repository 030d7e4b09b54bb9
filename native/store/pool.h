// The units of all layers whose experts have the same sizes, and the slots they compete for.
// Guarded by the lock of the store, but for what says otherwise.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "arena.h"
#include "file.h"
#include "policy.h"
#include "store.h"

namespace hotset {

constexpr uint32_t NOWHERE = UINT32_MAX; // no slot

enum class State : uint8_t { absent, coming, ready, failed };

struct Unit {
    uint32_t slot = NOWHERE;
    uint32_t num_leases = 0;
    uint32_t num_coming = 0;
    uint32_t num_waiting = 0; // threads, for any of the parts
    uint32_t layer = 0;       // in the store
    // Written under the lock, read also without: who sees `ready` sees the matrix.
    std::atomic<State> parts[HOTSET_MAX_PARTS] = {};
};

struct Pool {
    explicit Pool(std::vector<uint64_t> part_bytes) : arena(std::move(part_bytes)) {}

    // A unit may leave when nobody holds it and no read writes into it. Called after each change.
    void update_idle(uint32_t unit);

    Arena arena;
    uint32_t num_units = 0;
    std::vector<uint32_t> layer_sizes;
    std::vector<uint32_t> free_slots;
    uint32_t num_idle = 0; // units in memory that may leave
    std::vector<bool> may_leave;
    std::unique_ptr<Policy> policy;
    std::vector<Unit> units;
};

struct Part {
    const File* file;
    uint64_t offset;
    uint64_t expert_bytes;
};

struct Layer {
    std::vector<Part> parts;
    std::vector<const File*> files; // of the parts, each once
    uint32_t num_experts;
    Pool* pool;
    uint32_t index;      // in the store
    uint32_t first_unit; // in the pool
    uint32_t number;     // in the pool
};

} // namespace hotset
