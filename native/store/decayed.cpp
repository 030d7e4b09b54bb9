#include <optional>

#include "heat.h"
#include "policy.h"
#include "store.h"

namespace hotset {

namespace {

class Decayed final : public Policy {
public:
    Decayed(const std::vector<uint32_t>& layer_sizes, double threshold)
        : clocks(layer_sizes.size(), CLOCK_START), least_lead(std::log2(threshold)) {
        for (uint32_t layer = 0; layer < layer_sizes.size(); ++layer) {
            units.resize(units.size() + layer_sizes[layer], {.layer = layer});
        }
    }

    void begin(uint32_t number, uint32_t num_tokens) override {
        layer = number;
        prompt = num_tokens > HOTSET_MOST_DECODED_TOKENS;
        if (!prompt) {
            clocks[layer] += num_tokens / HALF_LIFE_TOKENS;
        }
    }

    void used(uint32_t unit) override {
        if (!prompt) {
            units[unit].heat = heated(units[unit].heat, clocks[layer]);
        }
    }

    void enters(uint32_t) override {}

    uint32_t evict(const std::vector<bool>& may_leave) override { return *coldest(may_leave); }

    bool admits(uint32_t unit, const std::vector<bool>& may_leave) const override {
        const std::optional<uint32_t> victim = coldest(may_leave);
        return victim && warmth(unit) > warmth(*victim) + least_lead;
    }

private:
    struct Unit {
        uint32_t layer;
        double heat = 0;
    };

    // Clocks of layers differ where batches skip layers: heat counts against its own.
    double warmth(uint32_t unit) const { return units[unit].heat - clocks[units[unit].layer]; }

    std::optional<uint32_t> coldest(const std::vector<bool>& may_leave) const {
        std::optional<uint32_t> found;
        for (uint32_t unit = 0; unit < units.size(); ++unit) {
            if (may_leave[unit] && (!found || warmth(unit) < warmth(*found))) {
                found = unit;
            }
        }
        return found;
    }

    std::vector<Unit> units;
    std::vector<double> clocks; // by layer, in half-lives
    double least_lead;          // log2 of the threshold
    uint32_t layer = 0;         // of the batch at hand
    bool prompt = false;        // is that batch one
};

} // namespace

std::unique_ptr<Policy> make_decayed(const std::vector<uint32_t>& layer_sizes, double threshold) {
    return std::make_unique<Decayed>(layer_sizes, threshold);
}

} // namespace hotset
