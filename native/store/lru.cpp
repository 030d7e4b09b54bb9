#include "policy.h"

namespace hotset {

namespace {

class Lru final : public Policy {
public:
    explicit Lru(uint32_t num_units) : links(num_units + 1) {
        links[num_units] = {num_units, num_units};
        for (uint32_t unit = 0; unit < num_units; ++unit) {
            links[unit] = {unit, unit};
        }
    }

    void used(uint32_t unit) override {
        unlink(unit);
        const uint32_t last = links[ends()].older;
        links[unit] = {last, ends()};
        links[last].newer = unit;
        links[ends()].older = unit;
    }

    uint32_t evict(const std::vector<bool>& may_leave) override {
        uint32_t unit = links[ends()].newer;
        while (!may_leave[unit]) {
            unit = links[unit].newer;
        }
        unlink(unit);
        return unit;
    }

private:
    // A ring from the oldest to the newest, closed by one extra link; a unit that is not in
    // memory points at itself.
    struct Link {
        uint32_t older, newer;
    };

    uint32_t ends() const { return static_cast<uint32_t>(links.size() - 1); }

    void unlink(uint32_t unit) {
        links[links[unit].older].newer = links[unit].newer;
        links[links[unit].newer].older = links[unit].older;
        links[unit] = {unit, unit};
    }

    std::vector<Link> links;
};

} // namespace

std::unique_ptr<Policy> make_lru(uint32_t num_units) { return std::make_unique<Lru>(num_units); }

} // namespace hotset
