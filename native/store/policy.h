// Which unit leaves when another needs its place. Only bookkeeping: no memory is touched here, so
// that a recorded trace can be replayed against a policy.
//
// For each batch in a layer: begin; then for each unit asked for: used, and if it is not in memory,
// evict where there is no free place, and enters.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

namespace hotset {

class Policy {
public:
    virtual ~Policy() = default;

    // A batch of `num_tokens` asks for units of `layer`: the calls that follow are about it.
    virtual void begin(uint32_t layer, uint32_t num_tokens) = 0;

    // The unit was asked for, whether it is in memory or not.
    virtual void used(uint32_t unit) = 0;

    // The unit is in memory from now on.
    virtual void enters(uint32_t unit) = 0;

    // The unit to evict first among those in memory for which `may_leave[unit]`; it is in memory
    // no longer. There is one.
    virtual uint32_t evict(const std::vector<bool>& may_leave) = 0;

    // Is the unit, which has been asked for, worth the place of the one that evict would name? For
    // memories beside which it can be used where it lies; others do not ask.
    virtual bool admits(uint32_t unit, const std::vector<bool>& may_leave) const;
};

// Each layer keeps an equal share of the slots, and gives up its own unit with the least uses, the
// recent ones counting more; so no layer pushes out those whose turn comes next. A unit that only a
// prompt asked for leaves before all others, the last to come first: of a sequence longer than
// memory that comes again, that keeps a share, where keeping the latest keeps none.
//
// Layer i owns layer_sizes[i] units, numbered after those of the layers before it.
std::unique_ptr<Policy> make_quota(const std::vector<uint32_t>& layer_sizes, uint32_t num_slots);

// The unit of any layer that was asked for longest ago leaves first.
std::unique_ptr<Policy> make_lru(const std::vector<uint32_t>& layer_sizes);

// The unit of any layer with the least uses leaves first, the recent ones counting more, those of
// prompts not at all. A unit is worth another's place if its uses are more than `threshold` times
// the other's; 0: always.
std::unique_ptr<Policy> make_decayed(const std::vector<uint32_t>& layer_sizes, double threshold);

// By name: quota, lru, decayed (with a threshold of 1.5). Null for any other name.
std::unique_ptr<Policy> make_policy(std::string_view name, const std::vector<uint32_t>& layer_sizes,
                                    uint32_t num_slots);

} // namespace hotset
