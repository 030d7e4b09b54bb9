// What the store counts: in shared memory where HOTSET_TELEMETRY names a file, so that another
// process reads it without stopping anything. Layout: docs/plugin.md.
#pragma once

#include <atomic>
#include <cstdint>

#include "store.h"

namespace hotset {

enum class StoreState : uint32_t { none, open, closed };

struct Counters {
    std::atomic<uint64_t> magic;           // "HOTSETCT" in memory; 0 while the page is being made
    uint32_t version;                      // of this layout
    uint32_t num_counters;                 // of the totals
    std::atomic<uint32_t> num_layers{0};   // records behind the totals
    uint32_t layer_bytes;                  // of one record
    std::atomic<StoreState> state{};       // of the store, which is closed with its model
    uint32_t header_bytes;                 // where the totals begin
    std::atomic<uint64_t> mapped_bytes{0}; // file ranges with expert weights that were handed over
    std::atomic<uint64_t> num_matrices{0}; // weight tensors in them
    std::atomic<uint64_t> num_products{0}; // MUL_MAT_ID operations computed
    std::atomic<uint64_t> num_rows{0};     // rows multiplied, over all experts and products
    std::atomic<uint64_t> budget_bytes{0}; // memory reserved for experts; 0 without a store
    hotset_stats stats{};                  // of all layers; the store counts here itself
};

// One layer with experts.
struct LayerCounters {
    char name[64];         // what the names of its tensors share: "blk.7"; ends with a zero
    uint32_t copy;         // of this name: one for each model that is loaded
    uint32_t num_experts;  // of which each
    uint64_t expert_bytes; // takes so much in the file
    hotset_stats stats;    // the store counts here itself
};

// The totals; never null, valid for the life of the process.
extern Counters* counters;

// Moves them into the file that HOTSET_TELEMETRY names, if any. False if that cannot be.
bool counters_open();

// A store is being made, has been opened, has been freed. Its layers count in the page too, the
// first 512 of them; more than any model has.
void counters_begin(hotset_store*);
void counters_add_layer(hotset_store*, int layer, const char* name, uint32_t copy,
                        uint32_t num_experts, uint64_t expert_bytes);
void counters_opened(const hotset_store*);
void counters_closed();

inline void count(std::atomic<uint64_t>& counter, uint64_t by = 1) {
    counter.fetch_add(by, std::memory_order_relaxed);
}

} // namespace hotset
