#include <algorithm>
#include <optional>

#include "heat.h"
#include "policy.h"
#include "store.h"

namespace hotset {

namespace {

class Quota final : public Policy {
public:
    Quota(const std::vector<uint32_t>& layer_sizes, uint32_t num_slots) {
        for (const uint32_t size : layer_sizes) {
            layers.push_back({.first = static_cast<uint32_t>(units.size()), .size = size});
            units.resize(units.size() + size, {.layer = static_cast<uint32_t>(layers.size() - 1)});
        }
        quota = num_slots / static_cast<uint32_t>(layers.size());
    }

    void begin(uint32_t number, uint32_t num_tokens) override {
        layer = number;
        prompt = num_tokens > HOTSET_MOST_DECODED_TOKENS;
        if (!prompt) {
            layers[layer].clock += num_tokens / HALF_LIFE_TOKENS;
        }
    }

    void used(uint32_t number) override {
        Unit& unit = units[number];
        if (prompt) {
            return;
        }
        unit.heat = heated(unit.heat, layers[layer].clock);
        if (unit.passing) {
            unit.passing = false;
            std::erase(passing, number);
        }
    }

    void enters(uint32_t number) override {
        Unit& unit = units[number];
        layers[unit.layer].num_resident += 1;
        if (prompt) {
            unit.passing = true;
            passing.push_back(number);
        }
    }

    uint32_t evict(const std::vector<bool>& may_leave) override {
        std::optional<uint32_t> victim = last_passing(may_leave);
        if (!victim && layers[layer].num_resident >= quota) {
            victim = coldest(layer, layer + 1, 0, may_leave);
        }
        if (!victim) {
            victim = coldest(0, layers.size(), quota + 1, may_leave);
        }
        if (!victim) {
            victim = coldest(0, layers.size(), 0, may_leave);
        }
        layers[units[*victim].layer].num_resident -= 1;
        return *victim;
    }

private:
    struct Unit {
        uint32_t layer;
        bool passing = false; // in memory, and asked for by prompts only
        double heat = 0;      // kept when the unit leaves
    };
    struct Layer {
        uint32_t first, size;
        uint32_t num_resident = 0;
        double clock = CLOCK_START;
    };

    std::optional<uint32_t> last_passing(const std::vector<bool>& may_leave) {
        const auto last = std::find_if(passing.rbegin(), passing.rend(),
                                       [&](uint32_t unit) { return may_leave[unit]; });
        if (last == passing.rend()) {
            return {};
        }
        const uint32_t unit = *last;
        passing.erase(std::next(last).base());
        units[unit].passing = false;
        return unit;
    }

    // Among those layers [begin, end) that have at least `least_resident` units in memory.
    std::optional<uint32_t> coldest(size_t begin, size_t end, uint32_t least_resident,
                                    const std::vector<bool>& may_leave) const {
        std::optional<uint32_t> found;
        double least_heat = 0;
        for (size_t i = begin; i < end; ++i) {
            if (layers[i].num_resident < least_resident) {
                continue;
            }
            // Clocks of layers differ where batches skip layers: heat counts against its own.
            for (uint32_t unit = layers[i].first; unit < layers[i].first + layers[i].size; ++unit) {
                const double heat = units[unit].heat - layers[i].clock;
                if (may_leave[unit] && (!found || heat < least_heat)) {
                    found = unit;
                    least_heat = heat;
                }
            }
        }
        return found;
    }

    std::vector<Unit> units;
    std::vector<Layer> layers;
    uint32_t quota;
    std::vector<uint32_t> passing; // in the order in which they came
    uint32_t layer = 0;            // of the batch at hand
    bool prompt = false;           // is that batch one
};

} // namespace

std::unique_ptr<Policy> make_quota(const std::vector<uint32_t>& layer_sizes, uint32_t num_slots) {
    return std::make_unique<Quota>(layer_sizes, num_slots);
}

} // namespace hotset
