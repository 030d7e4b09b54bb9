// What the store counts: one page, in shared memory where HOTSET_TELEMETRY names a file, that
// another process reads without stopping anything. Layout: docs/plugin.md.
#pragma once

#include <atomic>
#include <cstdint>

namespace hotset {

struct Counters {
    char magic[8];                      // "HOTSETCT"
    uint32_t version;                   // of this layout
    uint32_t num_counters;              // that follow
    std::atomic<uint64_t> mapped_bytes; // expert weights handed over as mapped file ranges
    std::atomic<uint64_t> num_matrices; // weight tensors in them
    std::atomic<uint64_t> num_products; // MUL_MAT_ID operations computed
    std::atomic<uint64_t> num_requests; // experts asked for, over all products
    std::atomic<uint64_t> num_rows;     // rows multiplied, over all experts and products
};

// The page; never null, valid for the life of the process.
extern Counters* counters;

// Moves the page into the file that HOTSET_TELEMETRY names, if any. False if that cannot be.
bool counters_open();

inline void count(std::atomic<uint64_t>& counter, uint64_t by = 1) {
    counter.fetch_add(by, std::memory_order_relaxed);
}

} // namespace hotset
