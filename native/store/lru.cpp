#include <numeric>

#include "policy.h"

namespace hotset {

namespace {

class Lru final : public Policy {
public:
    explicit Lru(uint32_t num_units) : last_use(num_units) {}

    void begin(uint32_t, uint32_t) override {}
    void used(uint32_t unit) override { last_use[unit] = ++num_uses; }
    void enters(uint32_t) override {}

    uint32_t evict(const std::vector<bool>& may_leave) override {
        uint32_t oldest = UINT32_MAX;
        for (uint32_t unit = 0; unit < last_use.size(); ++unit) {
            if (may_leave[unit] && (oldest == UINT32_MAX || last_use[unit] < last_use[oldest])) {
                oldest = unit;
            }
        }
        return oldest;
    }

private:
    std::vector<uint64_t> last_use;
    uint64_t num_uses = 0;
};

} // namespace

std::unique_ptr<Policy> make_lru(const std::vector<uint32_t>& layer_sizes) {
    return std::make_unique<Lru>(std::accumulate(layer_sizes.begin(), layer_sizes.end(), 0U));
}

} // namespace hotset
