// What the store counts: the layers for themselves, and together the whole.

#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "storekit.h"

namespace {

constexpr uint64_t hotset_stats::* ALL_COUNTERS[] = {
    &hotset_stats::resident_bytes, &hotset_stats::num_requests, &hotset_stats::num_hits,
    &hotset_stats::num_evictions,  &hotset_stats::read_bytes,   &hotset_stats::num_reads,
    &hotset_stats::wait_ns};
static_assert(sizeof ALL_COUNTERS / sizeof *ALL_COUNTERS == sizeof(hotset_stats) / 8);

// Reads as another process does: at any time, without the store's lock.
uint64_t look(hotset_stats& shared, uint64_t hotset_stats::* counter) {
    return std::atomic_ref(shared.*counter).load(std::memory_order_relaxed);
}

void a_layer_counts_what_was_asked_of_it_and_no_other() {
    const Model model;
    Store store(model);
    EXPECT(store.open(8.0 / (NUM_LAYERS * NUM_EXPERTS)));
    std::mt19937 random(5);
    uint64_t num_asked[NUM_LAYERS] = {};
    for (int round = 0; round < 100; ++round) {
        const int layer = static_cast<int>(random() % (NUM_LAYERS - 1)); // the last is left alone
        const size_t n = 1 + random() % 3;
        const hotset_stats before = store.stats(layer);
        store.check(layer, some_experts(random, n));
        num_asked[layer] += n;
        const hotset_stats after = store.stats(layer);
        // What was not there was read, three parts each, and nothing else was.
        const uint64_t num_missed = n - (after.num_hits - before.num_hits);
        EXPECT(after.num_reads - before.num_reads == 3 * num_missed);
        EXPECT((after.read_bytes > before.read_bytes) == (num_missed > 0));
    }
    for (int layer = 0; layer < NUM_LAYERS; ++layer) {
        const hotset_stats stats = store.stats(layer);
        EXPECT(stats.num_requests == num_asked[layer]);
        // Each unit that was brought in is still there or was evicted, by whichever layer.
        EXPECT(stats.num_requests - stats.num_hits ==
               stats.num_evictions + stats.resident_bytes / Store::slot_bytes);
    }
    for (const auto counter : ALL_COUNTERS) {
        EXPECT(store.stats(NUM_LAYERS - 1).*counter == 0);
    }
}

void layers_add_up_to_the_whole_and_both_can_be_read_at_any_time() {
    const Model model;
    Trouble trouble;
    trouble.delay_us = 50;
    hotset_stats totals, layers[NUM_LAYERS];
    {
        Store store(model);
        hotset_store_share_stats(store.store, &totals);
        // The last layer's stay with the store.
        for (int layer = 0; layer < NUM_LAYERS - 1; ++layer) {
            hotset_store_share_layer_stats(store.store, layer, &layers[layer]);
        }
        EXPECT(
            store.open(7.5 / (NUM_LAYERS * NUM_EXPERTS), {0, 0, Trouble::read, &trouble, nullptr}));
        std::atomic<bool> done = false;
        std::thread reader([&] {
            uint64_t num_requests = 0;
            while (!done) {
                const uint64_t now = look(totals, &hotset_stats::num_requests);
                EXPECT(now >= num_requests);
                num_requests = now;
                EXPECT(look(layers[1], &hotset_stats::resident_bytes) <= store.budget());
            }
        });
        std::vector<std::thread> threads;
        for (uint32_t seed = 0; seed < 3; ++seed) {
            threads.emplace_back([&store, seed] {
                std::mt19937 random(seed);
                for (int round = 0; round < 100; ++round) {
                    store.check(static_cast<int>(random() % NUM_LAYERS), some_experts(random, 4),
                                1 + random() % HOTSET_ALL_PARTS, round % 3 == 0 ? 512 : 1);
                }
            });
        }
        for (std::thread& thread : threads) {
            thread.join();
        }
        done = true;
        reader.join();
        layers[NUM_LAYERS - 1] = store.stats(NUM_LAYERS - 1);
        EXPECT(totals.num_requests == 3 * 100 * 4);
        EXPECT(totals.num_evictions > 0 && totals.wait_ns > 0);
        for (const auto counter : ALL_COUNTERS) {
            uint64_t sum = 0;
            for (int layer = 0; layer < NUM_LAYERS; ++layer) {
                EXPECT(store.stats(layer).*counter == layers[layer].*counter);
                sum += layers[layer].*counter;
            }
            EXPECT(totals.*counter == sum);
            EXPECT(store.stats().*counter == sum);
        }
    }
    // The store is gone; what it has told last stays told.
    EXPECT(totals.num_requests == 3 * 100 * 4 && layers[0].num_requests > 0);
}

} // namespace

int main() {
    a_layer_counts_what_was_asked_of_it_and_no_other();
    layers_add_up_to_the_whole_and_both_can_be_read_at_any_time();
    return 0;
}
