#include "counters.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <new>
#include <sys/mman.h>
#include <unistd.h>

#include "host.h"

namespace hotset {

namespace {

constexpr uint32_t NUM_COUNTERS =
    (sizeof(Counters) - offsetof(Counters, mapped_bytes)) / sizeof(uint64_t);

constinit Counters in_process{.magic = {'H', 'O', 'T', 'S', 'E', 'T', 'C', 'T'},
                              .version = 1,
                              .num_counters = NUM_COUNTERS,
                              .mapped_bytes = 0,
                              .num_matrices = 0,
                              .num_products = 0,
                              .num_requests = 0,
                              .num_rows = 0};

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
    // The magic is written last: a reader that sees it sees a complete page.
    std::memset(page, 0, sizeof(Counters));
    auto* shared = static_cast<Counters*>(page);
    shared->version = in_process.version;
    shared->num_counters = in_process.num_counters;
    std::atomic_thread_fence(std::memory_order_release);
    std::memcpy(shared->magic, in_process.magic, sizeof shared->magic);
    counters = shared;
    return true;
}

} // namespace hotset
