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

    // The unit was asked for; it is in memory from now on if it was not.
    virtual void used(uint32_t unit) = 0;

    // The unit to evict first among those in memory for which `may_leave[unit]`; it is in memory
    // no longer. There is one.
    virtual uint32_t evict(const std::vector<bool>& may_leave) = 0;
};

// The unit that was not asked for the longest leaves first.
std::unique_ptr<Policy> make_lru(uint32_t num_units);

} // namespace hotset
