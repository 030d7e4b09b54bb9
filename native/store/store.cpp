#include "store.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unistd.h>
#include <vector>

#include "arena.h"
#include "file.h"
#include "policy.h"
#include "readers.h"

namespace {

using hotset::Arena;
using hotset::File;
using hotset::Job;

constexpr uint32_t NOWHERE = UINT32_MAX;

enum class State : uint8_t { absent, coming, ready, failed };

struct Unit {
    uint32_t slot = NOWHERE;
    uint32_t num_leases = 0;
    uint32_t num_coming = 0;
    State parts[HOTSET_MAX_PARTS] = {};
};

struct Part {
    const File* file;
    uint64_t offset;
    uint64_t expert_bytes;
};

// Layers whose units have the same sizes compete for the same slots.
struct Pool {
    explicit Pool(std::vector<uint64_t> part_bytes) : arena(std::move(part_bytes)) {}

    Arena arena;
    uint32_t num_units = 0;
    std::vector<uint32_t> free_slots;
    uint32_t num_idle = 0; // units in memory that may leave
    std::vector<bool> may_leave;
    std::unique_ptr<hotset::Policy> policy;
    std::vector<Unit> units;
};

struct Layer {
    std::vector<Part> parts;
    uint32_t num_experts;
    Pool* pool;
    uint32_t first_unit; // in the pool
};

ssize_t plain_read(void*, int file, void* memory, size_t size, off_t offset) {
    return pread(file, memory, size, offset);
}

} // namespace

struct hotset_store final : hotset::Readers::Listener {
    void done(const Job&, std::string error, uint64_t moved_bytes) override;

    std::mutex mutex;
    std::condition_variable arrived;  // a part is ready or has failed
    std::condition_variable loosened; // a unit may leave that could not before
    std::map<std::string, std::unique_ptr<File>> files;
    std::vector<std::unique_ptr<Pool>> pools;
    std::vector<Layer> layers;
    hotset_stats stats{};
    std::string error, error_shown;
    std::unique_ptr<hotset::Readers> readers; // last: its threads use all of the above

    void fail(std::string what) { error = std::move(what); }
    void update_idle(Pool& pool, uint32_t unit);
    void take_slots(Pool& pool, const std::vector<uint32_t>& units);
};

struct hotset_lease {
    hotset_store* store;
    const Layer* layer;
    std::vector<int32_t> experts;

    uint32_t unit(size_t i) const { return layer->first_unit + static_cast<uint32_t>(experts[i]); }
};

// A unit may leave when nobody holds it and no read writes into it. Called after each change.
void hotset_store::update_idle(Pool& pool, uint32_t unit) {
    const Unit& u = pool.units[unit];
    const bool idle = u.slot != NOWHERE && u.num_leases == 0 && u.num_coming == 0;
    if (idle != pool.may_leave[unit]) {
        pool.may_leave[unit] = idle;
        pool.num_idle += idle ? 1 : -1;
    }
}

// Gives a slot to each of `units` that has none; there are enough free slots and idle units.
void hotset_store::take_slots(Pool& pool, const std::vector<uint32_t>& units) {
    for (const uint32_t unit : units) {
        pool.policy->used(unit);
        if (pool.units[unit].slot != NOWHERE) {
            continue;
        }
        if (pool.free_slots.empty()) {
            const uint32_t victim = pool.policy->evict(pool.may_leave);
            Unit& leaving = pool.units[victim];
            pool.free_slots.push_back(leaving.slot);
            leaving = {};
            update_idle(pool, victim);
            stats.num_evictions += 1;
            stats.resident_bytes -= pool.arena.slot_bytes;
        }
        pool.units[unit].slot = pool.free_slots.back();
        pool.free_slots.pop_back();
        stats.resident_bytes += pool.arena.slot_bytes;
    }
}

void hotset_store::done(const Job& job, std::string what, uint64_t moved_bytes) {
    const std::lock_guard lock(mutex);
    Pool& pool = *static_cast<Pool*>(job.owner);
    Unit& u = pool.units[job.unit];
    u.parts[job.part] = what.empty() ? State::ready : State::failed;
    u.num_coming -= 1;
    if (!what.empty()) {
        fail(std::move(what));
    }
    stats.read_bytes += moved_bytes;
    stats.num_reads += 1;
    update_idle(pool, job.unit);
    arrived.notify_all();
    loosened.notify_all();
}

hotset_store* hotset_store_new(void) { return new hotset_store; }

int hotset_store_add_layer(hotset_store* store, const hotset_part* parts, uint32_t num_parts,
                           uint32_t num_experts) {
    if (store->readers != nullptr || num_parts == 0 || num_parts > HOTSET_MAX_PARTS ||
        num_experts == 0) {
        store->fail("a layer of " + std::to_string(num_parts) + " parts with " +
                    std::to_string(num_experts) + " experts cannot be added" +
                    (store->readers != nullptr ? " after the store was opened" : ""));
        return -1;
    }
    Layer layer{.parts = {}, .num_experts = num_experts, .pool = nullptr, .first_unit = 0};
    std::vector<uint64_t> sizes;
    for (uint32_t part = 0; part < num_parts; ++part) {
        auto& file = store->files[parts[part].path];
        if (file == nullptr) {
            file = std::make_unique<File>(parts[part].path);
        }
        layer.parts.push_back({file.get(), parts[part].offset, parts[part].expert_bytes});
        sizes.push_back(parts[part].expert_bytes);
    }
    for (const auto& pool : store->pools) {
        if (pool->arena.part_bytes == sizes) {
            layer.pool = pool.get();
        }
    }
    if (layer.pool == nullptr) {
        store->pools.push_back(std::make_unique<Pool>(std::move(sizes)));
        layer.pool = store->pools.back().get();
    }
    layer.first_unit = layer.pool->num_units;
    layer.pool->num_units += num_experts;
    store->layers.push_back(std::move(layer));
    return static_cast<int>(store->layers.size()) - 1;
}

int hotset_store_open(hotset_store* store, const hotset_config* config) {
    for (const auto& [path, file] : store->files) {
        if (std::string what = file->open(); !what.empty()) {
            store->fail(std::move(what));
            return -1;
        }
    }
    uint64_t all_bytes = 0;
    for (const auto& pool : store->pools) {
        all_bytes += pool->num_units * pool->arena.slot_bytes;
    }
    // Every pool caches the same share of its units.
    const double share = std::min(1.0, static_cast<double>(config->ram_bytes) /
                                           static_cast<double>(std::max<uint64_t>(all_bytes, 1)));
    for (const auto& pool : store->pools) {
        const auto num_slots = static_cast<uint32_t>(share * pool->num_units);
        if (num_slots == 0) {
            // The least share that gives this pool one slot, of all bytes.
            const uint64_t needed = (all_bytes + pool->num_units - 1) / pool->num_units;
            store->fail("a budget of " + std::to_string(config->ram_bytes) +
                        " bytes holds no whole expert of every layer; the least is " +
                        std::to_string(needed) + " bytes");
            return -1;
        }
        if (!pool->arena.reserve(num_slots)) {
            store->fail("no address space for " +
                        std::to_string(num_slots * pool->arena.slot_bytes) + " bytes");
            return -1;
        }
        for (uint32_t slot = num_slots; slot > 0; --slot) {
            pool->free_slots.push_back(slot - 1);
        }
        pool->units.resize(pool->num_units);
        pool->may_leave.resize(pool->num_units, false);
        pool->policy = hotset::make_lru(pool->num_units);
        store->stats.budget_bytes += num_slots * pool->arena.slot_bytes;
    }
    store->readers = std::make_unique<hotset::Readers>(
        std::max(1U, config->num_readers), config->read != nullptr ? config->read : plain_read,
        config->read_context, *store);
    return 0;
}

uint32_t hotset_store_capacity(const hotset_store* store, int layer) {
    return store->layers[layer].pool->arena.num_slots;
}

int hotset_store_bank(const hotset_store* store, int layer, uint32_t part, hotset_bank* bank) {
    const auto& [file, offset, expert_bytes] = store->layers[layer].parts[part];
    const Arena& arena = store->layers[layer].pool->arena;
    if (expert_bytes % hotset::BLOCK_BYTES != 0) {
        return 0; // each expert begins elsewhere in its first block
    }
    *bank = {arena.place(0, part, offset), arena.slot_bytes, arena.num_slots};
    return 1;
}

hotset_lease* hotset_store_acquire(hotset_store* store, int layer_number, const int32_t* experts,
                                   size_t n, uint32_t parts) {
    const Layer& layer = store->layers[layer_number];
    Pool& pool = *layer.pool;
    std::unique_lock lock(store->mutex);
    if (n > pool.arena.num_slots) {
        store->fail(std::to_string(n) + " experts asked for at once, but the memory holds " +
                    std::to_string(pool.arena.num_slots));
        return nullptr;
    }
    auto lease = std::make_unique<hotset_lease>(
        hotset_lease{store, &layer, std::vector<int32_t>(experts, experts + n)});
    std::vector<uint32_t> units;
    size_t num_missing = 0;
    for (size_t i = 0; i < n; ++i) {
        units.push_back(lease->unit(i));
    }
    // Hold what is there before anything leaves; give it back while waiting for others, so that
    // two threads cannot wait for each other.
    auto hold = [&] {
        num_missing = 0;
        for (const uint32_t unit : units) {
            pool.units[unit].num_leases += 1;
            num_missing += pool.units[unit].slot == NOWHERE;
            store->update_idle(pool, unit);
        }
    };
    auto drop = [&] {
        for (const uint32_t unit : units) {
            pool.units[unit].num_leases -= 1;
            store->update_idle(pool, unit);
        }
    };
    hold();
    while (num_missing > pool.free_slots.size() + pool.num_idle) {
        drop();
        store->loosened.wait(lock);
        hold();
    }
    store->take_slots(pool, units);

    std::vector<Job> jobs;
    std::vector<bool> hit(n, true);
    for (uint32_t part = 0; part < layer.parts.size(); ++part) {
        if ((parts >> part & 1) == 0) {
            continue;
        }
        const auto& [file, offset, expert_bytes] = layer.parts[part];
        for (size_t i = 0; i < n; ++i) {
            Unit& unit = pool.units[units[i]];
            if (unit.parts[part] == State::ready || unit.parts[part] == State::coming) {
                continue;
            }
            hit[i] = false;
            unit.parts[part] = State::coming;
            unit.num_coming += 1;
            const uint64_t at = offset + static_cast<uint64_t>(experts[i]) * expert_bytes;
            jobs.push_back({.file = file,
                            .offset = at,
                            .size_bytes = expert_bytes,
                            .memory = pool.arena.place(unit.slot, part, at),
                            .owner = &pool,
                            .unit = units[i],
                            .part = part});
        }
    }
    store->stats.num_requests += n;
    store->stats.num_hits += std::count(hit.begin(), hit.end(), true);
    lock.unlock();
    if (!jobs.empty()) {
        store->readers->submit(jobs);
    }
    return lease.release();
}

int hotset_store_ready(hotset_lease* lease, size_t i, uint32_t part) {
    const std::lock_guard lock(lease->store->mutex);
    return lease->layer->pool->units[lease->unit(i)].parts[part] != State::coming;
}

const void* hotset_store_wait(hotset_lease* lease, size_t i, uint32_t part) {
    hotset_store* store = lease->store;
    const Pool& pool = *lease->layer->pool;
    const Unit& unit = pool.units[lease->unit(i)];
    std::unique_lock lock(store->mutex);
    if (unit.parts[part] == State::coming) {
        const auto before = std::chrono::steady_clock::now();
        store->arrived.wait(lock, [&] { return unit.parts[part] != State::coming; });
        const auto waited = std::chrono::steady_clock::now() - before;
        store->stats.wait_ns += static_cast<uint64_t>(
            std::chrono::duration_cast<std::chrono::nanoseconds>(waited).count());
    }
    if (unit.parts[part] != State::ready) {
        return nullptr;
    }
    const auto& [file, offset, expert_bytes] = lease->layer->parts[part];
    const uint64_t at = offset + static_cast<uint64_t>(lease->experts[i]) * expert_bytes;
    return pool.arena.place(unit.slot, part, at);
}

void hotset_store_release(hotset_lease* lease) {
    hotset_store* store = lease->store;
    {
        const std::lock_guard lock(store->mutex);
        Pool& pool = *lease->layer->pool;
        for (size_t i = 0; i < lease->experts.size(); ++i) {
            pool.units[lease->unit(i)].num_leases -= 1;
            store->update_idle(pool, lease->unit(i));
        }
    }
    store->loosened.notify_all();
    delete lease;
}

void hotset_store_stats(hotset_store* store, hotset_stats* stats) {
    const std::lock_guard lock(store->mutex);
    *stats = store->stats;
}

const char* hotset_store_error(hotset_store* store) {
    const std::lock_guard lock(store->mutex);
    store->error_shown = store->error;
    return store->error_shown.c_str();
}

void hotset_store_free(hotset_store* store) { delete store; }
