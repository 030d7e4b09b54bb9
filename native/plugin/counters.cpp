#include "counters.h"

#include <array>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <new>
#include <sys/mman.h>
#include <unistd.h>

#include "experts.h"
#include "host.h"

namespace hotset {

namespace {

constexpr uint64_t MAGIC =
    std::bit_cast<uint64_t>(std::array<char, 8>{'H', 'O', 'T', 'S', 'E', 'T', 'C', 'T'});
constexpr uint32_t NUM_COUNTERS =
    (sizeof(Counters) - offsetof(Counters, mapped_bytes)) / sizeof(uint64_t);

// The only page without HOTSET_TELEMETRY, and the pattern for the shared one.
constinit Counters in_process{MAGIC, 1, NUM_COUNTERS};

} // namespace

constinit Counters* counters = &in_process;

bool counters_open() {
    const char* path = std::getenv("HOTSET_TELEMETRY");
    if (path == nullptr || *path == '\0' || counters != &in_process) {
        return true;
    }
    const int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    void* page = MAP_FAILED;
    if (file >= 0 && ftruncate(file, sizeof(Counters)) == 0) {
        page = mmap(nullptr, sizeof(Counters), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    }
    if (page == MAP_FAILED) {
        say("telemetry file %s: %s", path, std::strerror(errno));
    }
    if (file >= 0) {
        close(file);
    }
    if (page == MAP_FAILED) {
        return false;
    }
    // The magic comes last: a reader that sees it sees a complete page.
    auto* shared = new (page) Counters{0, in_process.version, in_process.num_counters};
    shared->magic.store(MAGIC, std::memory_order_release);
    counters = shared;
    return true;
}

void counters_publish() {
    hotset_store* store = experts_store();
    if (store == nullptr) {
        return;
    }
    hotset_stats stats;
    hotset_store_stats(store, &stats);
    const auto set = [](std::atomic<uint64_t>& counter, uint64_t value) {
        counter.store(value, std::memory_order_relaxed);
    };
    set(counters->budget_bytes, stats.budget_bytes);
    set(counters->resident_bytes, stats.resident_bytes);
    set(counters->num_requests, stats.num_requests);
    set(counters->num_hits, stats.num_hits);
    set(counters->num_evictions, stats.num_evictions);
    set(counters->read_bytes, stats.read_bytes);
    set(counters->num_reads, stats.num_reads);
    set(counters->wait_ns, stats.wait_ns);
}

} // namespace hotset
