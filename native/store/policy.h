// Which unit leaves when another needs its place. Only bookkeeping: no memory is touched here, so
// that a recorded trace can be replayed against a policy.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace hotset {

class Policy {
public:
    virtual ~Policy() = default;

    // A batch of `num_tokens` asks for units of `layer`: the calls that follow are about it.
    virtual void begin(uint32_t layer, uint32_t num_tokens) = 0;

    // The unit was asked for; it is in memory from now on if it was not.
    virtual void used(uint32_t unit) = 0;

    // The unit to evict first among those in memory for which `may_leave[unit]`; it is in memory
    // no longer. There is one.
    virtual uint32_t evict(const std::vector<bool>& may_leave) = 0;
};

// Each layer keeps an equal share of the slots, and gives up its own unit with the least uses, the
// recent ones counting more; so no layer pushes out those whose turn comes next. A unit that only a
// prompt asked for leaves before all others, the last to come first: of a sequence longer than
// memory that comes again, that keeps a share, where keeping the latest keeps none.
//
// Layer i owns layer_sizes[i] units, numbered after those of the layers before it.
std::unique_ptr<Policy> make_quota(const std::vector<uint32_t>& layer_sizes, uint32_t num_slots);

} // namespace hotset
