// What the store counts: one page, in shared memory where HOTSET_TELEMETRY names a file, that
// another process reads without stopping anything. Layout: docs/plugin.md.
#pragma once

#include <atomic>
#include <cstdint>

namespace hotset {

struct Counters {
    std::atomic<uint64_t> magic;           // "HOTSETCT" in memory; 0 while the page is being made
    uint32_t version;                      // of this layout
    uint32_t num_counters;                 // that follow
    std::atomic<uint64_t> mapped_bytes{0}; // file ranges with expert weights that were handed over
    std::atomic<uint64_t> num_matrices{0}; // weight tensors in them
    std::atomic<uint64_t> num_products{0}; // MUL_MAT_ID operations computed
    std::atomic<uint64_t> num_rows{0};     // rows multiplied, over all experts and products
    std::atomic<uint64_t> budget_bytes{0}; // memory reserved for experts; 0 without a store
    std::atomic<uint64_t> resident_bytes{0}; // of it in use
    std::atomic<uint64_t> num_requests{0};   // experts of a layer asked for
    std::atomic<uint64_t> num_hits{0};       // of them in memory or already on their way
    std::atomic<uint64_t> num_evictions{0};
    std::atomic<uint64_t> read_bytes{0};
    std::atomic<uint64_t> num_reads{0};
    std::atomic<uint64_t> wait_ns{0}; // time spent waiting for reads
};

// The page; never null, valid for the life of the process.
extern Counters* counters;

// Moves the page into the file that HOTSET_TELEMETRY names, if any. False if that cannot be.
bool counters_open();

// Brings what the store counts by itself up to date.
void counters_publish();

inline void count(std::atomic<uint64_t>& counter, uint64_t by = 1) {
    counter.fetch_add(by, std::memory_order_relaxed);
}

} // namespace hotset
