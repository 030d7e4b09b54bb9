// The store without ggml: what it hands out is what the files hold, whatever happens around it.
// Each case is a function; a failed expectation names its line and ends the program with 1.

#include <atomic>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <random>
#include <string>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "storekit.h"

namespace {

void every_matrix_is_what_the_file_holds() {
    const Model model;
    Store store(model);
    EXPECT(store.open(1));
    for (int round = 0; round < 2; ++round) {
        for (int layer = 0; layer < NUM_LAYERS; ++layer) {
            for (int32_t expert = 0; expert < static_cast<int32_t>(NUM_EXPERTS); ++expert) {
                store.check(layer, {expert});
            }
        }
    }
    // All fits: the second round reads nothing and nothing ever leaves.
    const hotset_stats stats = store.stats();
    EXPECT(stats.num_requests == 2 * NUM_LAYERS * NUM_EXPERTS);
    EXPECT(stats.num_hits == NUM_LAYERS * NUM_EXPERTS);
    EXPECT(stats.num_reads == 3 * NUM_LAYERS * NUM_EXPERTS);
    EXPECT(stats.num_evictions == 0);
    EXPECT(stats.resident_bytes == store.budget());
}

void the_budget_holds_whatever_is_asked_for() {
    const Model model;
    for (const double share : {0.07, 0.25, 0.6}) {
        Store store(model);
        EXPECT(store.open(share));
        std::mt19937 random(11);
        const uint32_t capacity = hotset_store_capacity(store.store, 0);
        for (int round = 0; round < 200; ++round) {
            const size_t n = 1 + random() % std::min<uint32_t>(capacity, NUM_EXPERTS);
            store.check(static_cast<int>(random() % NUM_LAYERS), some_experts(random, n),
                        1 + random() % HOTSET_ALL_PARTS);
            const hotset_stats stats = store.stats();
            EXPECT(stats.resident_bytes <= store.budget());
            EXPECT(store.budget() <= share * NUM_LAYERS * NUM_EXPERTS * Store::slot_bytes);
        }
        EXPECT(store.stats().num_evictions > 0);
    }
}

void a_layer_gives_up_its_own_unit_and_a_prompt_gives_up_its_own_first() {
    const Model model;
    Store store(model);
    EXPECT(store.open(8.0 / (NUM_LAYERS * NUM_EXPERTS)));
    for (int layer = 0; layer < NUM_LAYERS; ++layer) {
        store.check(layer, {1, 2});
    }
    store.check(0, {2});
    store.check(0, {3}); // takes the place of (0, 1)
    EXPECT(store.stats().num_evictions == 1);
    const uint64_t num_hits = store.stats().num_hits;
    store.check(0, {2, 3});
    store.check(1, {1, 2});
    EXPECT(store.stats().num_hits == num_hits + 4);
    for (int32_t expert = 4; expert < 16; ++expert) {
        store.check(1, {expert}, HOTSET_ALL_PARTS, 512);
    }
    // One place was enough for all of them.
    const uint64_t before = store.stats().num_hits;
    for (int layer = 0; layer < NUM_LAYERS; ++layer) {
        store.check(layer, {2});
    }
    EXPECT(store.stats().num_hits >= before + 3);
}

void trying_never_waits_for_memory_that_is_held() {
    const Model model;
    Store store(model);
    EXPECT(store.open(4.0 / (NUM_LAYERS * NUM_EXPERTS)));
    const int32_t first[] = {1, 2, 3}, next[] = {4, 5}, one[] = {6};
    hotset_lease* held = hotset_store_acquire(store.store, 0, first, 3, HOTSET_ALL_PARTS, 1);
    EXPECT(hotset_store_try_acquire(store.store, 0, next, 2, HOTSET_ALL_PARTS, 1) == nullptr);
    hotset_lease* also = hotset_store_try_acquire(store.store, 0, one, 1, HOTSET_ALL_PARTS, 1);
    EXPECT(also != nullptr);
    EXPECT(store.holds(hotset_store_wait(also, 0, 2), 0, 2, 6));
    for (size_t i = 0; i < 3; ++i) {
        EXPECT(store.holds(hotset_store_wait(held, i, 1), 0, 1, first[i]));
    }
    hotset_store_release(held);
    hotset_store_release(also);
    store.check(0, {4, 5});
}

void a_budget_for_less_than_one_expert_is_refused_with_the_least() {
    const Model model;
    Store store(model);
    EXPECT(!store.open(0.01));
    const std::string error = hotset_store_error(store.store);
    EXPECT(error.find("the least is " + std::to_string(Store::slot_bytes)) != std::string::npos);
    Store exact(model);
    EXPECT(exact.open(1.0 / (NUM_LAYERS * NUM_EXPERTS)));
    exact.check(0, {3});
    exact.check(1, {3});
}

void experts_of_whole_blocks_lie_in_a_bank_and_others_do_not() {
    const Model model;
    Store uneven(model);
    EXPECT(uneven.open(1));
    hotset_bank bank;
    EXPECT(hotset_store_bank(uneven.store, 0, 0, &bank) == 0);

    hotset_store* even = hotset_store_new();
    constexpr uint64_t bytes = 8192;
    const hotset_part parts[] = {{model.path.c_str(), 100, bytes},
                                 {model.path.c_str(), 5000, bytes}};
    EXPECT(hotset_store_add_layer(even, parts, 2, NUM_EXPERTS) == 0);
    const hotset_config config = {12 * 2 * (bytes + 4096), 2, nullptr, nullptr, nullptr};
    EXPECT(hotset_store_open(even, &config) == 0);
    std::mt19937 random(3);
    for (int round = 0; round < 20; ++round) {
        const std::vector<int32_t> experts = some_experts(random, 6);
        hotset_lease* lease = hotset_store_acquire(even, 0, experts.data(), 6, HOTSET_ALL_PARTS, 1);
        for (uint32_t part = 0; part < 2; ++part) {
            EXPECT(hotset_store_bank(even, 0, part, &bank) == 1);
            for (size_t i = 0; i < experts.size(); ++i) {
                const auto* matrix = static_cast<const char*>(hotset_store_wait(lease, i, part));
                const uint64_t distance = matrix - static_cast<const char*>(bank.base);
                EXPECT(distance % bank.stride_bytes == 0);
                EXPECT(distance / bank.stride_bytes < bank.num_places);
                EXPECT(std::memcmp(matrix,
                                   model.content.data() + parts[part].offset + experts[i] * bytes,
                                   bytes) == 0);
            }
        }
        hotset_store_release(lease);
    }
    hotset_store_free(even);
}

void more_experts_than_fit_are_refused() {
    const Model model;
    Store store(model);
    EXPECT(store.open(2.0 / (NUM_LAYERS * NUM_EXPERTS)));
    const int32_t experts[] = {1, 2, 3};
    EXPECT(hotset_store_acquire(store.store, 0, experts, 3, HOTSET_ALL_PARTS, 1) == nullptr);
    store.check(0, {1, 2});
}

void a_missing_file_is_named() {
    hotset_store* store = hotset_store_new();
    const hotset_part part = {"/missing/model.gguf", 0, 100};
    EXPECT(hotset_store_add_layer(store, &part, 1, 4) == 0);
    const hotset_config config = {1000000, 1, nullptr, nullptr, nullptr};
    EXPECT(hotset_store_open(store, &config) == -1);
    EXPECT(std::strstr(hotset_store_error(store), "/missing/model.gguf: No such file") != nullptr);
    hotset_store_free(store);
}

void a_failed_read_is_an_error_and_the_next_request_tries_again() {
    const Model model;
    Trouble trouble;
    Store store(model);
    EXPECT(store.open(0.5, {0, 0, Trouble::read, &trouble, nullptr}));
    trouble.error = EIO;
    const int32_t experts[] = {2, 9};
    hotset_lease* lease = hotset_store_acquire(store.store, 1, experts, 2, HOTSET_ALL_PARTS, 1);
    // All of them: a later request that joins a read which then fails, fails with it.
    for (uint32_t part = 0; part < 3; ++part) {
        for (size_t i = 0; i < 2; ++i) {
            EXPECT(hotset_store_wait(lease, i, part) == nullptr);
        }
    }
    EXPECT(std::strstr(hotset_store_error(store.store), "Input/output error") != nullptr);
    hotset_store_release(lease);
    trouble.error = 0;
    store.check(1, {2, 9});
}

void short_reads_are_completed() {
    const Model model;
    Trouble trouble;
    for (const size_t most : {4096, 8192, 5000}) {
        trouble.most = most;
        Store store(model);
        EXPECT(store.open(1, {0, 0, Trouble::read, &trouble, nullptr}));
        for (int layer = 0; layer < NUM_LAYERS; ++layer) {
            store.check(layer, {0, 7, 15});
        }
    }
}

void a_token_is_read_for_expert_by_expert_and_a_prompt_part_by_part() {
    const Model model;
    struct Noting {
        static ssize_t read(void* context, int file, void* memory, size_t size, off_t offset) {
            static_cast<std::vector<off_t>*>(context)->push_back(offset);
            return pread(file, memory, size, offset);
        }
    };
    const std::vector<int32_t> experts = {5, 2, 9};
    for (const bool prompt : {false, true}) {
        std::vector<off_t> places;
        Store store(model);
        const hotset_config config = {1 << 20, 1, Noting::read, &places, nullptr};
        EXPECT(hotset_store_open(store.store, &config) == 0);
        store.check(1, experts, HOTSET_ALL_PARTS, prompt ? 512 : 1);
        std::vector<off_t> expected;
        for (size_t i = 0; i < 9; ++i) {
            const uint64_t offset = prompt ? model.offset(1, i / 3, experts[i % 3])
                                           : model.offset(1, i % 3, experts[i / 3]);
            expected.push_back(static_cast<off_t>(offset / 4096 * 4096));
        }
        EXPECT(places == expected);
    }
}

void a_file_without_direct_reads_is_read_through_the_page_cache() {
    const Model model;
    struct Refusing {
        static ssize_t read(void*, int file, void* memory, size_t size, off_t offset) {
            if ((fcntl(file, F_GETFL) & O_DIRECT) != 0) {
                errno = EINVAL;
                return -1;
            }
            return pread(file, memory, size, offset);
        }
    };
    Store store(model);
    EXPECT(store.open(1, {0, 0, Refusing::read, nullptr, nullptr}));
    store.check(2, {0, 1, 2, 3});
}

void a_file_that_changes_or_shrinks_gives_no_weights() {
    for (const bool shrink : {false, true}) {
        const Model model;
        Store store(model);
        EXPECT(store.open(1));
        store.check(0, {0});
        if (shrink) {
            EXPECT(truncate(model.path.c_str(), 1000) == 0);
        } else {
            const int file = open(model.path.c_str(), O_WRONLY);
            EXPECT(pwrite(file, "x", 1, 0) == 1);
            const timespec now[] = {{0, UTIME_OMIT}, {12345, 678}};
            EXPECT(futimens(file, now) == 0);
            close(file);
        }
        // What is in memory already is not given out either.
        for (const int32_t expert : {0, 1}) {
            EXPECT(hotset_store_acquire(store.store, 0, &expert, 1, 1, 1) == nullptr);
            EXPECT(std::strstr(hotset_store_error(store.store), "changed while in use") != nullptr);
        }
    }
}

// Too late for the look before the request, and found by the one after the read.
void a_file_that_changes_during_a_read_gives_no_weights() {
    for (const bool shrink : {false, true}) {
        const Model model;
        Trouble trouble;
        trouble.delay_us = 20000;
        Store store(model);
        EXPECT(store.open(1, {0, 0, Trouble::read, &trouble, nullptr}));
        const int32_t expert = 1;
        hotset_lease* lease = hotset_store_acquire(store.store, 0, &expert, 1, HOTSET_ALL_PARTS, 1);
        EXPECT(lease != nullptr);
        EXPECT(truncate(model.path.c_str(),
                        static_cast<off_t>(model.content.size()) + (shrink ? -1 : 1)) == 0);
        EXPECT(hotset_store_wait(lease, 0, 0) == nullptr);
        EXPECT(std::strstr(hotset_store_error(store.store), "changed while in use") != nullptr);
        hotset_store_release(lease);
    }
}

// The end of the file is met by a read where its size has not been looked at yet.
void a_file_that_is_shorter_than_its_header_says_gives_no_weights() {
    // Before the expert, within it at a block's edge and off one, and one byte before its end.
    for (const uint64_t length : {1000UL, 28672UL, 30000UL, GAP_BYTES + 2 * PART_BYTES[0] - 1}) {
        const Model model;
        EXPECT(truncate(model.path.c_str(), static_cast<off_t>(length)) == 0);
        Store store(model);
        EXPECT(store.open(1));
        const int32_t expert = 1;
        hotset_lease* lease = hotset_store_acquire(store.store, 0, &expert, 1, HOTSET_ALL_PARTS, 1);
        EXPECT(hotset_store_wait(lease, 0, 0) == nullptr);
        EXPECT(std::strstr(hotset_store_error(store.store), "ends at") != nullptr);
        hotset_store_release(lease);
    }
}

void threads_that_ask_for_overlapping_experts_all_get_theirs() {
    const Model model;
    Trouble trouble;
    trouble.delay_us = 50;
    Store store(model);
    // Room for six units, asked for by three threads in fours: they must wait for each other.
    EXPECT(store.open(6.5 / (NUM_LAYERS * NUM_EXPERTS), {0, 0, Trouble::read, &trouble, nullptr}));
    std::vector<std::thread> threads;
    for (uint32_t seed = 0; seed < 3; ++seed) {
        threads.emplace_back([&store, seed] {
            std::mt19937 random(seed);
            for (int round = 0; round < 100; ++round) {
                store.check(static_cast<int>(random() % NUM_LAYERS), some_experts(random, 4),
                            HOTSET_ALL_PARTS, round % 3 == 0 ? 512 : 1);
                store.check_ahead(static_cast<int>(random() % NUM_LAYERS), some_experts(random, 9),
                                  3);
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    EXPECT(store.stats().resident_bytes <= store.budget());
}

void a_store_can_be_freed_while_reads_are_under_way() {
    const Model model;
    Trouble trouble;
    trouble.delay_us = 2000;
    for (int round = 0; round < 10; ++round) {
        Store store(model);
        EXPECT(store.open(1, {0, 0, Trouble::read, &trouble, nullptr}));
        const int32_t experts[] = {0, 1, 2, 3, 4, 5};
        hotset_store_release(hotset_store_acquire(store.store, 0, experts, 6, HOTSET_ALL_PARTS, 1));
    }
}

} // namespace

int main() {
    every_matrix_is_what_the_file_holds();
    the_budget_holds_whatever_is_asked_for();
    a_layer_gives_up_its_own_unit_and_a_prompt_gives_up_its_own_first();
    trying_never_waits_for_memory_that_is_held();
    a_budget_for_less_than_one_expert_is_refused_with_the_least();
    experts_of_whole_blocks_lie_in_a_bank_and_others_do_not();
    more_experts_than_fit_are_refused();
    a_missing_file_is_named();
    a_failed_read_is_an_error_and_the_next_request_tries_again();
    short_reads_are_completed();
    a_token_is_read_for_expert_by_expert_and_a_prompt_part_by_part();
    a_file_without_direct_reads_is_read_through_the_page_cache();
    a_file_that_changes_or_shrinks_gives_no_weights();
    a_file_that_changes_during_a_read_gives_no_weights();
    a_file_that_is_shorter_than_its_header_says_gives_no_weights();
    threads_that_ask_for_overlapping_experts_all_get_theirs();
    a_store_can_be_freed_while_reads_are_under_way();
    return 0;
}
