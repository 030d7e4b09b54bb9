// What the tests of the store share: a model file, a store over it, and reads that go wrong.
#pragma once

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include "store.h"

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                   \
            std::exit(1);                                                                          \
        }                                                                                          \
    } while (false)

constexpr uint32_t NUM_EXPERTS = 16;
constexpr int NUM_LAYERS = 4;
// Neither sizes nor offsets are multiples of a block, as in a model file.
constexpr uint64_t PART_BYTES[] = {20001, 20001, 12352};
constexpr uint64_t GAP_BYTES = 96;

// A file of random bytes that holds every part of every layer, one after the other.
struct Model {
    Model() {
        std::mt19937 random(7);
        uint64_t offset = GAP_BYTES;
        for (int layer = 0; layer < NUM_LAYERS; ++layer) {
            for (const uint64_t bytes : PART_BYTES) {
                offsets.push_back(offset);
                offset += bytes * NUM_EXPERTS + GAP_BYTES;
            }
        }
        content.resize(offset);
        for (char& byte : content) {
            byte = static_cast<char>(random());
        }
        char name[] = "/var/tmp/hotset-store-test-XXXXXX";
        const int file = mkstemp(name);
        EXPECT(file >= 0);
        EXPECT(write(file, content.data(), content.size()) == static_cast<ssize_t>(content.size()));
        close(file);
        path = name;
    }
    ~Model() { unlink(path.c_str()); }

    uint64_t offset(int layer, uint32_t part, int32_t expert) const {
        return offsets[layer * 3 + part] + expert * PART_BYTES[part];
    }

    std::string path;
    std::string content;
    std::vector<uint64_t> offsets;
};

struct Store {
    explicit Store(const Model& model) : model(model), store(hotset_store_new()) {
        for (int layer = 0; layer < NUM_LAYERS; ++layer) {
            hotset_part parts[3];
            for (uint32_t part = 0; part < 3; ++part) {
                parts[part] = {model.path.c_str(), model.offset(layer, part, 0), PART_BYTES[part]};
            }
            EXPECT(hotset_store_add_layer(store, parts, 3, NUM_EXPERTS) == layer);
        }
    }
    ~Store() { hotset_store_free(store); }

    bool open(double share, hotset_config config = {}) {
        config.ram_bytes = static_cast<uint64_t>(share * NUM_LAYERS * NUM_EXPERTS * slot_bytes);
        config.num_readers = 3;
        return hotset_store_open(store, &config) == 0;
    }

    hotset_stats stats() const {
        hotset_stats stats;
        hotset_store_stats(store, &stats);
        return stats;
    }

    hotset_stats stats(int layer) const {
        hotset_stats stats;
        hotset_store_layer_stats(store, layer, &stats);
        return stats;
    }

    uint64_t budget() const { return hotset_store_budget(store); }

    bool holds(const void* matrix, int layer, uint32_t part, int32_t expert) const {
        return std::memcmp(matrix, model.content.data() + model.offset(layer, part, expert),
                           PART_BYTES[part]) == 0;
    }

    // Asks for experts, compares all that comes with the file, gives them back.
    void check(int layer, const std::vector<int32_t>& experts, uint32_t parts = HOTSET_ALL_PARTS,
               uint32_t num_tokens = 1) {
        hotset_lease* lease =
            hotset_store_acquire(store, layer, experts.data(), experts.size(), parts, num_tokens);
        EXPECT(lease != nullptr);
        for (uint32_t part = 0; part < 3; ++part) {
            if ((parts >> part & 1) == 0) {
                continue;
            }
            for (size_t i = 0; i < experts.size(); ++i) {
                const void* matrix = hotset_store_wait(lease, i, part);
                EXPECT(matrix != nullptr);
                EXPECT(hotset_store_ready(lease, i, part));
                EXPECT(holds(matrix, layer, part, experts[i]));
            }
        }
        hotset_store_release(lease);
    }

    // The same in turns of `size`, as far as memory allows the next turn's reads during this one.
    void check_ahead(int layer, const std::vector<int32_t>& experts, size_t size) {
        hotset_lease* lease = nullptr;
        for (size_t first = 0; first < experts.size(); first += size) {
            if (lease == nullptr) {
                lease = hotset_store_acquire(store, layer, &experts[first], size, 1, 512);
            }
            hotset_lease* next = nullptr;
            if (first + size < experts.size()) {
                next = hotset_store_try_acquire(store, layer, &experts[first + size], size, 1, 512);
            }
            for (size_t i = 0; i < size; ++i) {
                const void* matrix = hotset_store_wait(lease, i, 0);
                EXPECT(matrix != nullptr && holds(matrix, layer, 0, experts[first + i]));
            }
            hotset_store_release(lease);
            lease = next;
        }
    }

    static constexpr uint64_t slot_bytes = 24576 + 24576 + 20480;
    const Model& model;
    hotset_store* store;
};

inline std::vector<int32_t> some_experts(std::mt19937& random, size_t n) {
    std::vector<int32_t> experts;
    while (experts.size() < n) {
        const auto expert = static_cast<int32_t>(random() % NUM_EXPERTS);
        bool known = false;
        for (const int32_t other : experts) {
            known |= other == expert;
        }
        if (!known) {
            experts.push_back(expert);
        }
    }
    return experts;
}

// Fails where `error` is set; otherwise reads at most `most` bytes at a time.
struct Trouble {
    std::atomic<int> error{0};
    std::atomic<size_t> most{SIZE_MAX};
    std::atomic<int> delay_us{0};

    static ssize_t read(void* context, int file, void* memory, size_t size, off_t offset) {
        auto* trouble = static_cast<Trouble*>(context);
        std::this_thread::sleep_for(std::chrono::microseconds(trouble->delay_us));
        if (trouble->error != 0) {
            errno = trouble->error;
            return -1;
        }
        return pread(file, memory, std::min<size_t>(size, trouble->most), offset);
    }
};
