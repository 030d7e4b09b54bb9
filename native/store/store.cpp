#include "store.h"

#include <algorithm>
#include <atomic>
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
#include "lease.h"
#include "policy.h"
#include "pool.h"
#include "readers.h"
#include "tally.h"

namespace {

using hotset::Arena;
using hotset::File;
using hotset::Job;
using hotset::Layer;
using hotset::NOWHERE;
using hotset::Pool;
using hotset::State;
using hotset::Unit;

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
    std::vector<std::unique_ptr<hotset_lease>> spare_leases;
    uint32_t num_blocked = 0; // threads that wait for memory
    hotset::Tally tally;
    uint64_t budget_bytes = 0;
    std::string error, error_shown;
    std::unique_ptr<hotset::Readers> readers; // last: its threads use all of the above

    void fail(std::string what) { error = std::move(what); }
    void take_slots(Pool& pool, const std::vector<uint32_t>& units);
    std::unique_ptr<hotset_lease> new_lease();
    hotset_lease* acquire(const Layer& layer, const int32_t* experts, size_t n, uint32_t parts,
                          uint32_t num_tokens, bool wait);
};

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
            leaving.slot = NOWHERE;
            for (auto& state : leaving.parts) {
                state = State::absent;
            }
            pool.update_idle(victim);
            tally.more(leaving.layer, &hotset_stats::num_evictions, 1);
            tally.less(leaving.layer, &hotset_stats::resident_bytes, pool.arena.slot_bytes);
        }
        pool.units[unit].slot = pool.free_slots.back();
        pool.free_slots.pop_back();
        pool.policy->enters(unit);
        tally.more(pool.units[unit].layer, &hotset_stats::resident_bytes, pool.arena.slot_bytes);
    }
}

void hotset_store::done(const Job& job, std::string what, uint64_t moved_bytes) {
    const std::lock_guard lock(mutex);
    Pool& pool = *static_cast<Pool*>(job.owner);
    Unit& u = pool.units[job.unit];
    u.parts[job.part].store(what.empty() ? State::ready : State::failed, std::memory_order_release);
    u.num_coming -= 1;
    if (!what.empty()) {
        fail(std::move(what));
    }
    tally.more(u.layer, &hotset_stats::read_bytes, moved_bytes);
    tally.more(u.layer, &hotset_stats::num_reads, 1);
    pool.update_idle(job.unit);
    if (u.num_waiting > 0) {
        arrived.notify_all();
    }
    if (num_blocked > 0) {
        loosened.notify_all();
    }
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
    Layer layer{.parts = {},
                .files = {},
                .num_experts = num_experts,
                .pool = nullptr,
                .index = static_cast<uint32_t>(store->layers.size()),
                .first_unit = 0,
                .number = 0};
    std::vector<uint64_t> sizes;
    for (uint32_t part = 0; part < num_parts; ++part) {
        auto& file = store->files[parts[part].path];
        if (file == nullptr) {
            file = std::make_unique<File>(parts[part].path);
        }
        layer.parts.push_back({file.get(), parts[part].offset, parts[part].expert_bytes});
        if (std::ranges::find(layer.files, file.get()) == layer.files.end()) {
            layer.files.push_back(file.get());
        }
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
    layer.number = static_cast<uint32_t>(layer.pool->layer_sizes.size());
    layer.pool->layer_sizes.push_back(num_experts);
    layer.pool->num_units += num_experts;
    store->layers.push_back(std::move(layer));
    store->tally.add_layer();
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
        pool->units = std::vector<Unit>(pool->num_units);
        pool->may_leave.resize(pool->num_units, false);
        const std::string name = config->policy != nullptr ? config->policy : "quota";
        pool->policy = hotset::make_policy(name, pool->layer_sizes, num_slots);
        if (pool->policy == nullptr) {
            store->fail("there is no policy '" + name + "': it is quota, lru or decayed");
            return -1;
        }
        store->budget_bytes += num_slots * pool->arena.slot_bytes;
    }
    for (const Layer& layer : store->layers) {
        for (uint32_t expert = 0; expert < layer.num_experts; ++expert) {
            layer.pool->units[layer.first_unit + expert].layer = layer.index;
        }
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

std::unique_ptr<hotset_lease> hotset_store::new_lease() {
    if (spare_leases.empty()) {
        return std::make_unique<hotset_lease>();
    }
    std::unique_ptr<hotset_lease> lease = std::move(spare_leases.back());
    spare_leases.pop_back();
    return lease;
}

hotset_lease* hotset_store::acquire(const Layer& layer, const int32_t* experts, size_t n,
                                    uint32_t parts, uint32_t num_tokens, bool wait) {
    Pool& pool = *layer.pool;
    // Also where all is in memory: the engine maps the rest of the same file, and sees it change.
    std::string changed;
    for (const File* file : layer.files) {
        changed = changed.empty() ? file->changed() : changed;
    }
    std::unique_lock lock(mutex);
    if (!changed.empty()) {
        fail(std::move(changed));
        return nullptr;
    }
    if (n > pool.arena.num_slots) {
        fail(std::to_string(n) + " experts asked for at once, but the memory holds " +
             std::to_string(pool.arena.num_slots));
        return nullptr;
    }
    std::unique_ptr<hotset_lease> lease = new_lease();
    lease->store = this;
    lease->layer = &layer;
    lease->units.clear();
    for (size_t i = 0; i < n; ++i) {
        lease->units.push_back(layer.first_unit + static_cast<uint32_t>(experts[i]));
    }
    // Hold what is there before anything leaves; give it back while waiting for others, so that
    // two threads cannot wait for each other.
    lease->hold();
    while (lease->num_missing() > pool.free_slots.size() + pool.num_idle ||
           (!wait && num_blocked > 0)) {
        lease->drop();
        if (!wait) {
            spare_leases.push_back(std::move(lease));
            return nullptr;
        }
        num_blocked += 1;
        loosened.wait(lock);
        num_blocked -= 1;
        lease->hold();
    }
    pool.policy->begin(layer.number, num_tokens);
    take_slots(pool, lease->units);
    tally.more(layer.index, &hotset_stats::num_requests, n);
    const bool prompt = num_tokens > HOTSET_MOST_DECODED_TOKENS;
    tally.more(layer.index, &hotset_stats::num_hits, lease->request(parts, prompt));
    lock.unlock();
    if (!lease->jobs.empty()) {
        readers->submit(lease->jobs);
    }
    return lease.release();
}

hotset_lease* hotset_store_acquire(hotset_store* store, int layer, const int32_t* experts, size_t n,
                                   uint32_t parts, uint32_t num_tokens) {
    return store->acquire(store->layers[layer], experts, n, parts, num_tokens, true);
}

hotset_lease* hotset_store_try_acquire(hotset_store* store, int layer, const int32_t* experts,
                                       size_t n, uint32_t parts, uint32_t num_tokens) {
    return store->acquire(store->layers[layer], experts, n, parts, num_tokens, false);
}

int hotset_store_ready(hotset_lease* lease, size_t i, uint32_t part) {
    const Unit& unit = lease->layer->pool->units[lease->units[i]];
    return unit.parts[part].load(std::memory_order_acquire) != State::coming;
}

const void* hotset_store_wait(hotset_lease* lease, size_t i, uint32_t part) {
    hotset_store* store = lease->store;
    Pool& pool = *lease->layer->pool;
    Unit& unit = pool.units[lease->units[i]];
    const std::atomic<State>& state = unit.parts[part];
    if (state.load(std::memory_order_acquire) == State::coming) {
        std::unique_lock lock(store->mutex);
        const auto before = std::chrono::steady_clock::now();
        unit.num_waiting += 1;
        store->arrived.wait(lock, [&] { return state != State::coming; });
        unit.num_waiting -= 1;
        const auto waited = std::chrono::steady_clock::now() - before;
        store->tally.more(unit.layer, &hotset_stats::wait_ns,
                          std::chrono::duration_cast<std::chrono::nanoseconds>(waited).count());
    }
    if (state.load(std::memory_order_acquire) != State::ready) {
        return nullptr;
    }
    return pool.arena.place(unit.slot, part, lease->offset(lease->units[i], part));
}

void hotset_store_release(hotset_lease* lease) {
    hotset_store* store = lease->store;
    const std::lock_guard lock(store->mutex);
    lease->drop();
    store->spare_leases.emplace_back(lease);
    if (store->num_blocked > 0) {
        store->loosened.notify_all();
    }
}

void hotset_store_stats(hotset_store* store, hotset_stats* stats) {
    const std::lock_guard lock(store->mutex);
    *stats = store->tally.totals();
}

void hotset_store_layer_stats(hotset_store* store, int layer, hotset_stats* stats) {
    const std::lock_guard lock(store->mutex);
    *stats = store->tally.of(layer);
}

void hotset_store_share_stats(hotset_store* store, hotset_stats* stats) {
    store->tally.share(stats);
}

void hotset_store_share_layer_stats(hotset_store* store, int layer, hotset_stats* stats) {
    store->tally.share(layer, stats);
}

uint64_t hotset_store_budget(const hotset_store* store) { return store->budget_bytes; }

const char* hotset_store_error(hotset_store* store) {
    const std::lock_guard lock(store->mutex);
    store->error_shown = store->error;
    return store->error_shown.c_str();
}

void hotset_store_free(hotset_store* store) { delete store; }
