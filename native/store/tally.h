// What has been counted, in all and by layer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "store.h"

namespace hotset {

// Written under the lock of the store; each number may be read without it, where it is shared.
class Tally {
public:
    // A number of hotset_stats.
    using Counter = uint64_t hotset_stats::*;

    Tally() { add_place(); }
    Tally(const Tally&) = delete;
    Tally& operator=(const Tally&) = delete;

    void add_layer() { add_place(); }
    void share(hotset_stats* totals);
    void share(size_t layer, hotset_stats* stats);

    void more(size_t layer, Counter counter, uint64_t by);
    void less(size_t layer, Counter counter, uint64_t by);

    const hotset_stats& totals() const { return *places[0]; }
    const hotset_stats& of(size_t layer) const { return *places[1 + layer]; }

private:
    void add_place() { places.push_back(&own.emplace_back()); }

    std::deque<hotset_stats> own;      // stay where they are when more are added
    std::vector<hotset_stats*> places; // the totals, then the layers
};

} // namespace hotset
