// Sequences of requests replayed against the policy, as the store would ask it.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "policy.h"

namespace {

using hotset::Policy;

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                   \
            std::exit(1);                                                                          \
        }                                                                                          \
    } while (false)

constexpr uint32_t NUM_EXPERTS = 16;

// Memory of `num_slots` units and the bookkeeping that the store does around its policy.
struct Memory {
    Memory(std::unique_ptr<Policy> policy, uint32_t num_layers, uint32_t num_slots)
        : policy(std::move(policy)), present(num_layers * NUM_EXPERTS), num_free(num_slots) {}

    // One batch in one layer: looks all up, then brings in what is missing. Returns the hits.
    size_t ask(uint32_t layer, const std::vector<uint32_t>& experts, uint32_t num_tokens = 1) {
        size_t num_hits = 0;
        std::vector<bool> may_leave = present;
        for (const uint32_t expert : experts) {
            num_hits += present[layer * NUM_EXPERTS + expert];
            may_leave[layer * NUM_EXPERTS + expert] = false;
        }
        policy->begin(layer, num_tokens);
        for (const uint32_t expert : experts) {
            const uint32_t unit = layer * NUM_EXPERTS + expert;
            policy->used(unit);
            if (present[unit]) {
                continue;
            }
            if (num_free > 0) {
                num_free -= 1;
            } else {
                const uint32_t victim = policy->evict(may_leave);
                EXPECT(may_leave[victim] && present[victim]);
                may_leave[victim] = false;
                present[victim] = false;
            }
            present[unit] = true;
            policy->enters(unit);
        }
        return num_hits;
    }

    bool has(uint32_t layer, uint32_t expert) const {
        return present[layer * NUM_EXPERTS + expert];
    }

    std::unique_ptr<Policy> policy;
    std::vector<bool> present;
    uint32_t num_free;
};

Memory memory_of(const char* policy, uint32_t num_layers, uint32_t num_slots) {
    return {hotset::make_policy(policy, std::vector<uint32_t>(num_layers, NUM_EXPERTS), num_slots),
            num_layers, num_slots};
}

Memory quota_memory(uint32_t num_layers, uint32_t num_slots) {
    return memory_of("quota", num_layers, num_slots);
}

void a_layer_at_its_quota_gives_up_its_own_unit_with_the_least_uses() {
    Memory memory = quota_memory(2, 4);
    memory.ask(0, {1, 2});
    memory.ask(1, {7, 8});
    memory.ask(0, {2});
    memory.ask(1, {7});
    memory.ask(0, {3});
    EXPECT(!memory.has(0, 1) && memory.has(0, 2) && memory.has(0, 3));
    memory.ask(1, {9});
    EXPECT(memory.has(1, 7) && !memory.has(1, 8) && memory.has(1, 9));
}

void old_uses_fade() {
    Memory memory = quota_memory(1, 2);
    for (int token = 0; token < 20; ++token) {
        memory.ask(0, {1});
    }
    for (int token = 0; token < 200; ++token) {
        memory.ask(0, {2});
    }
    memory.ask(0, {3}); // 1 has more uses than 3 will have, but they are old
    memory.ask(0, {2});
    memory.ask(0, {4});
    EXPECT(memory.has(0, 2) && !memory.has(0, 1));
}

void a_layer_below_its_quota_takes_from_one_above() {
    Memory memory = quota_memory(2, 8);
    memory.ask(0, {1, 2, 3, 4, 5, 6, 7});
    memory.ask(1, {1});
    memory.ask(1, {2, 3, 4});
    for (uint32_t expert = 1; expert <= 4; ++expert) {
        EXPECT(memory.has(1, expert));
    }
}

void a_prompt_leaves_what_decoding_uses() {
    constexpr uint32_t num_layers = 4;
    Memory memory = quota_memory(num_layers, 24);
    for (int token = 0; token < 5; ++token) {
        for (uint32_t layer = 0; layer < num_layers; ++layer) {
            memory.ask(layer, {3, 4, 5});
        }
    }
    // All experts of every layer, a few at a time, twice; 12 slots are not in use by decoding.
    size_t num_hits[2] = {};
    for (size_t& hits : num_hits) {
        for (uint32_t layer = 0; layer < num_layers; ++layer) {
            for (uint32_t first = 0; first < NUM_EXPERTS; first += 4) {
                hits += memory.ask(layer, {first, first + 1, first + 2, first + 3}, 512);
            }
        }
    }
    EXPECT(num_hits[0] == num_layers * 3);
    // Of the other 12 slots, at most 4 serve the passage; the rest is found again.
    EXPECT(num_hits[1] >= num_layers * 3 + 8);
    for (uint32_t layer = 0; layer < num_layers; ++layer) {
        EXPECT(memory.ask(layer, {3, 4, 5}) == 3);
    }
}

// Tokens that choose two of each layer's experts, some far more often than others.
size_t replay(Memory memory, uint32_t num_layers) {
    std::mt19937 random(5);
    size_t num_hits = 0;
    for (int token = 0; token < 400; ++token) {
        for (uint32_t layer = 0; layer < num_layers; ++layer) {
            const auto skewed = [&] {
                return static_cast<uint32_t>((random() % 4 != 0 ? random() % 3 : random()) +
                                             layer) %
                       NUM_EXPERTS;
            };
            const uint32_t one = skewed();
            uint32_t other = skewed();
            while (other == one) {
                other = skewed();
            }
            num_hits += memory.ask(layer, {one, other});
        }
    }
    return num_hits;
}

void memory_for_less_than_a_token_still_gives_hits_where_recency_gives_none() {
    constexpr uint32_t num_layers = 8;
    for (const uint32_t num_slots : {8, 12, 24, 48}) {
        const size_t lru = replay(memory_of("lru", num_layers, num_slots), num_layers);
        const size_t quota = replay(quota_memory(num_layers, num_slots), num_layers);
        std::printf("%u slots: %zu hits, by recency %zu, of %u\n", num_slots, quota, lru,
                    400 * num_layers * 2);
        EXPECT(quota > lru);
        EXPECT(num_slots >= 2 * num_layers || lru == 0);
    }
}

void a_unit_is_admitted_when_its_uses_are_more_than_the_threshold_times_the_coldests() {
    const auto policy = hotset::make_decayed({NUM_EXPERTS}, 2);
    std::vector<bool> may_leave(NUM_EXPERTS);
    may_leave[1] = true;
    const auto ask = [&](uint32_t unit, uint32_t num_tokens = 1) {
        policy->begin(0, num_tokens);
        policy->used(unit);
        return policy->admits(unit, may_leave);
    };
    ask(1);
    EXPECT(!ask(2, 512)); // uses of a prompt do not count
    EXPECT(!ask(2));
    EXPECT(!ask(2));
    EXPECT(ask(2));
    EXPECT(!policy->admits(2, std::vector<bool>(NUM_EXPERTS)));
    EXPECT(hotset::make_lru({NUM_EXPERTS})->admits(2, may_leave));
    EXPECT(hotset::make_policy("unheard-of", {NUM_EXPERTS}, 4) == nullptr);
}

} // namespace

int main() {
    a_layer_at_its_quota_gives_up_its_own_unit_with_the_least_uses();
    old_uses_fade();
    a_layer_below_its_quota_takes_from_one_above();
    a_prompt_leaves_what_decoding_uses();
    memory_for_less_than_a_token_still_gives_hits_where_recency_gives_none();
    a_unit_is_admitted_when_its_uses_are_more_than_the_threshold_times_the_coldests();
    return 0;
}
