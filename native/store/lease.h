// Units of one layer that are held in memory. Guarded by the lock of the store.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "pool.h"
#include "readers.h"
#include "store.h"

// Kept when it is given back, so that a token allocates nothing.
struct hotset_lease {
    hotset_store* store = nullptr;
    const hotset::Layer* layer = nullptr;
    std::vector<uint32_t> units = {};
    std::vector<hotset::Job> jobs = {};

    // Where a unit's matrix begins in its file.
    uint64_t offset(uint32_t unit, uint32_t part) const;

    void hold() const;
    void drop() const;
    size_t num_missing() const;

    // Makes the jobs that bring in what is missing of `parts`: for a prompt one part after the
    // other, so that its first product can begin; else one unit after the other, so that the first
    // can be computed to the end. Returns how many units lack nothing.
    size_t request(uint32_t parts, bool prompt);
};
