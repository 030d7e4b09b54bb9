#include "tally.h"

#include <atomic>

namespace hotset {

namespace {

// There is one writer at a time, so nothing can come between the load and the store.
void change(uint64_t& number, uint64_t by) {
    const std::atomic_ref shared(number);
    shared.store(shared.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
}

} // namespace

void Tally::share(hotset_stats* totals) {
    *totals = *places[0];
    places[0] = totals;
}

void Tally::share(size_t layer, hotset_stats* stats) {
    *stats = *places[1 + layer];
    places[1 + layer] = stats;
}

void Tally::more(size_t layer, Counter counter, uint64_t by) {
    change(places[0]->*counter, by);
    change(places[1 + layer]->*counter, by);
}

void Tally::less(size_t layer, Counter counter, uint64_t by) { more(layer, counter, -by); }

} // namespace hotset
