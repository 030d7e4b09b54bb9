#include "counters.h"

#include <array>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <new>
#include <sys/mman.h>
#include <unistd.h>

#include "host.h"

namespace hotset {

namespace {

constexpr uint64_t MAGIC =
    std::bit_cast<uint64_t>(std::array<char, 8>{'H', 'O', 'T', 'S', 'E', 'T', 'C', 'T'});
constexpr uint32_t VERSION = 2;
constexpr uint32_t HEADER_BYTES = offsetof(Counters, mapped_bytes);
constexpr uint32_t NUM_COUNTERS = (sizeof(Counters) - HEADER_BYTES) / sizeof(uint64_t);
constexpr uint32_t MOST_LAYERS = 512;
constexpr size_t PAGE_BYTES = sizeof(Counters) + MOST_LAYERS * sizeof(LayerCounters);

// The totals without HOTSET_TELEMETRY, and the pattern for the shared ones.
constinit Counters in_process{.magic = MAGIC,
                              .version = VERSION,
                              .num_counters = NUM_COUNTERS,
                              .layer_bytes = sizeof(LayerCounters),
                              .header_bytes = HEADER_BYTES};

// Behind the totals; null without HOTSET_TELEMETRY.
constinit LayerCounters* layers = nullptr;

} // namespace

constinit Counters* counters = &in_process;

bool counters_open() {
    const char* path = std::getenv("HOTSET_TELEMETRY");
    if (path == nullptr || *path == '\0' || counters != &in_process) {
        return true;
    }
    const int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    int error = file < 0 ? errno : 0;
    void* page = MAP_FAILED;
    if (error == 0) {
        // A hole in the file would be a crash later, where the disk is full.
        error = posix_fallocate(file, 0, PAGE_BYTES);
    }
    if (error == 0) {
        page = mmap(nullptr, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        error = page == MAP_FAILED ? errno : 0;
    }
    if (file >= 0) {
        close(file);
    }
    if (error != 0) {
        say("telemetry file %s: %s", path, std::strerror(error));
        return false;
    }
    // The magic comes last: a reader that sees it sees a complete page.
    auto* shared = new (page) Counters{.magic = 0,
                                       .version = VERSION,
                                       .num_counters = NUM_COUNTERS,
                                       .layer_bytes = sizeof(LayerCounters),
                                       .header_bytes = HEADER_BYTES};
    shared->magic.store(MAGIC, std::memory_order_release);
    counters = shared;
    layers = reinterpret_cast<LayerCounters*>(shared + 1);
    return true;
}

void counters_begin(hotset_store* store) {
    counters->num_layers.store(0, std::memory_order_relaxed);
    hotset_store_share_stats(store, &counters->stats);
}

void counters_add_layer(hotset_store* store, int layer, const char* name, uint32_t copy,
                        uint32_t num_experts, uint64_t expert_bytes) {
    const uint32_t at = counters->num_layers.load(std::memory_order_relaxed);
    if (layers == nullptr || at == MOST_LAYERS) {
        return;
    }
    auto* record = new (layers + at) LayerCounters{.name = {},
                                                   .copy = copy,
                                                   .num_experts = num_experts,
                                                   .expert_bytes = expert_bytes,
                                                   .stats = {}};
    std::strncpy(record->name, name, sizeof record->name - 1);
    hotset_store_share_layer_stats(store, layer, &record->stats);
    counters->num_layers.store(at + 1, std::memory_order_release);
}

void counters_opened(const hotset_store* store) {
    counters->budget_bytes.store(hotset_store_budget(store), std::memory_order_relaxed);
    counters->state.store(StoreState::open, std::memory_order_release);
}

void counters_closed() { counters->state.store(StoreState::closed, std::memory_order_release); }

} // namespace hotset
