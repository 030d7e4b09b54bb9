#include "lease.h"

#include <algorithm>

using hotset::NOWHERE;
using hotset::Pool;
using hotset::State;
using hotset::Unit;

uint64_t hotset_lease::offset(uint32_t unit, uint32_t part) const {
    const auto& [file, offset, expert_bytes] = layer->parts[part];
    return offset + (unit - layer->first_unit) * expert_bytes;
}

void hotset_lease::hold() const {
    for (const uint32_t unit : units) {
        layer->pool->units[unit].num_leases += 1;
        layer->pool->update_idle(unit);
    }
}

void hotset_lease::drop() const {
    for (const uint32_t unit : units) {
        layer->pool->units[unit].num_leases -= 1;
        layer->pool->update_idle(unit);
    }
}

size_t hotset_lease::num_missing() const {
    return std::count_if(units.begin(), units.end(), [this](uint32_t unit) {
        return layer->pool->units[unit].slot == NOWHERE;
    });
}

size_t hotset_lease::request(uint32_t parts, bool prompt) {
    Pool& pool = *layer->pool;
    const auto is_missing = [&](uint32_t unit, uint32_t part) {
        const State state = pool.units[unit].parts[part];
        return (parts >> part & 1) != 0 && (state == State::absent || state == State::failed);
    };
    const auto num_parts = static_cast<uint32_t>(layer->parts.size());
    size_t num_hits = 0;
    for (const uint32_t unit : units) {
        bool hit = true;
        for (uint32_t part = 0; part < num_parts; ++part) {
            hit = hit && !is_missing(unit, part);
        }
        num_hits += hit ? 1 : 0;
    }
    jobs.clear();
    const size_t num_matrices = units.size() * num_parts;
    for (size_t i = 0; num_hits < units.size() && i < num_matrices; ++i) {
        const uint32_t number = units[prompt ? i % units.size() : i / num_parts];
        const auto part = static_cast<uint32_t>(prompt ? i / units.size() : i % num_parts);
        if (!is_missing(number, part)) {
            continue;
        }
        Unit& unit = pool.units[number];
        unit.parts[part] = State::coming;
        unit.num_coming += 1;
        const uint64_t at = offset(number, part);
        jobs.push_back({.file = layer->parts[part].file,
                        .offset = at,
                        .size_bytes = layer->parts[part].expert_bytes,
                        .memory = pool.arena.place(unit.slot, part, at),
                        .owner = &pool,
                        .unit = number,
                        .part = part});
    }
    return num_hits;
}
