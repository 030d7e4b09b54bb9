// For one child process (LD_PRELOAD): keeps the engine from reading whole model files at start.
//
// HOTSET_NO_PREFETCH lists files, separated by colons. A mapping of one of them loses MAP_POPULATE,
// and advice to read it ahead is answered with success and not passed on. Everything else goes to
// the kernel unchanged. The functions call the kernel directly: they must work before any other
// library is ready, and need no memory.
//
// HOTSET_READ_FIRST has a field for each of these files, in the same order and separated by colons:
// what of the file is needed whatever happens, as "begin-end" in bytes, separated by commas. These
// ranges are read ahead when the file is mapped. A page of them that is missing nevertheless is
// read alone: around it the kernel would read megabytes of experts.

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

constexpr size_t MAX_RANGES = 1024; // mapped shards, as many as a model may have

// A mapped range of a listed file. `end` is 0 where the entry is free; written after `begin`.
struct Range {
    std::atomic<uintptr_t> begin;
    std::atomic<uintptr_t> end;
};

constinit Range ranges[MAX_RANGES] = {};
constinit std::atomic<size_t> num_ranges{0};

constexpr int NOT_LISTED = -1;

// How much is asked for at once. The kernel cuts one advice off at the disk's read-ahead window
// (force_page_cache_ra in mm/readahead.c), which is 128 KiB unless somebody has set it.
constexpr size_t READ_AHEAD_BYTES = 128 << 10;

constexpr size_t HUGE_PAGE_BYTES = 2 << 20; // of x86-64

// The number of the field that names the file, or NOT_LISTED.
int place_in_list(int file) {
    const char* list = std::getenv("HOTSET_NO_PREFETCH");
    struct stat mapped;
    if (list == nullptr || file < 0 || fstat(file, &mapped) != 0) {
        return NOT_LISTED;
    }
    for (int place = 0; *list != '\0'; ++place) {
        const char* end = strchrnul(list, ':');
        char path[PATH_MAX];
        const size_t length = end - list;
        struct stat named;
        if (length > 0 && length < sizeof path) {
            std::memcpy(path, list, length);
            path[length] = '\0';
            if (stat(path, &named) == 0 && named.st_dev == mapped.st_dev &&
                named.st_ino == mapped.st_ino) {
                return place;
            }
        }
        list = *end == '\0' ? end : end + 1;
    }
    return NOT_LISTED;
}

void remember(void* address, size_t size) {
    const size_t place = num_ranges.fetch_add(1);
    if (place < MAX_RANGES) {
        ranges[place].begin = reinterpret_cast<uintptr_t>(address);
        ranges[place].end = reinterpret_cast<uintptr_t>(address) + size;
    }
}

// Ranges are never forgotten: advice is only a hint, so swallowing it for later memory at the
// same address is harmless.
bool is_remembered(const void* address) {
    const auto wanted = reinterpret_cast<uintptr_t>(address);
    for (size_t i = 0; i < MAX_RANGES && i < num_ranges; ++i) {
        if (wanted >= ranges[i].begin && wanted < ranges[i].end) {
            return true;
        }
    }
    return false;
}

void read_ahead(char* begin, char* end) {
    for (; begin < end; begin += READ_AHEAD_BYTES) {
        syscall(SYS_madvise, begin, std::min<size_t>(READ_AHEAD_BYTES, end - begin), MADV_WILLNEED);
    }
}

// Reads mapped memory from `begin` on, the inner part of it into huge pages where kernel and file
// system can: a page fault that may use one and must not read ahead reads exactly that page
// (do_sync_mmap_readahead in mm/filemap.c).
void read_range(char* begin, char* end) {
    // Each range by itself: what lies between them keeps the kernel's usual ways.
    syscall(SYS_madvise, begin, end - begin, MADV_RANDOM);
    const auto first = reinterpret_cast<uintptr_t>(begin);
    const auto last = reinterpret_cast<uintptr_t>(end);
    char* inner =
        begin + ((first + HUGE_PAGE_BYTES - 1) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES - first);
    char* outer = end - last % HUGE_PAGE_BYTES;
    if (inner < outer && syscall(SYS_madvise, inner, outer - inner, MADV_HUGEPAGE) == 0 &&
        syscall(SYS_madvise, inner, outer - inner, MADV_POPULATE_READ) == 0) {
        read_ahead(begin, inner);
        read_ahead(outer, end);
    } else {
        read_ahead(begin, end);
    }
}

// Reads ahead what field `place` of HOTSET_READ_FIRST names, in a mapping of the file from `offset`
// on. Ends quietly at anything that is no range: the mapping is as good without.
void read_first(int place, char* mapped, size_t size, uint64_t offset) {
    const char* text = std::getenv("HOTSET_READ_FIRST");
    for (; text != nullptr && place > 0; --place) {
        text = std::strchr(text, ':');
        text = text != nullptr ? text + 1 : nullptr;
    }
    const auto page_bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    while (text != nullptr && *text >= '0' && *text <= '9') {
        char* rest;
        uint64_t begin = std::strtoull(text, &rest, 10);
        if (*rest != '-') {
            return;
        }
        uint64_t end = std::strtoull(rest + 1, &rest, 10);
        begin = std::max(begin, offset) / page_bytes * page_bytes;
        end = std::min(end, offset + size);
        if (begin < end) {
            read_range(mapped + (begin - offset), mapped + (end - offset));
        }
        text = *rest == ',' ? rest + 1 : nullptr;
    }
}

} // namespace

extern "C" {

[[gnu::visibility("default")]] void* mmap(void* address, size_t size, int protection, int flags,
                                          int file, off_t offset) noexcept {
    const int place = (flags & MAP_ANONYMOUS) == 0 ? place_in_list(file) : NOT_LISTED;
    if (place != NOT_LISTED) {
        flags &= ~MAP_POPULATE;
    }
    const long result = syscall(SYS_mmap, address, size, protection, flags, file, offset);
    auto* mapped = reinterpret_cast<void*>(result);
    if (place != NOT_LISTED && mapped != MAP_FAILED) {
        remember(mapped, size);
        const int before = errno;
        read_first(place, static_cast<char*>(mapped), size, static_cast<uint64_t>(offset));
        errno = before;
    }
    return mapped;
}

[[gnu::visibility("default")]] void* mmap64(void* address, size_t size, int protection, int flags,
                                            int file, off64_t offset) noexcept {
    return mmap(address, size, protection, flags, file, offset);
}

[[gnu::visibility("default")]] int madvise(void* address, size_t size, int advice) noexcept {
    if ((advice == MADV_WILLNEED || advice == MADV_POPULATE_READ) && is_remembered(address)) {
        return 0;
    }
    return static_cast<int>(syscall(SYS_madvise, address, size, advice));
}

// Unlike madvise this returns the error and leaves errno alone.
[[gnu::visibility("default")]] int posix_madvise(void* address, size_t size, int advice) noexcept {
    // The C library ignores "don't need" here: the kernel's meaning of it destroys data.
    if (advice == POSIX_MADV_DONTNEED ||
        (advice == POSIX_MADV_WILLNEED && is_remembered(address))) {
        return 0;
    }
    const int before = errno;
    const long result = syscall(SYS_madvise, address, size, advice);
    const int error = result == 0 ? 0 : errno;
    errno = before;
    return error;
}

[[gnu::visibility("default")]] int posix_fadvise(int file, off_t offset, off_t size,
                                                 int advice) noexcept {
    if (advice == POSIX_FADV_WILLNEED && place_in_list(file) != NOT_LISTED) {
        return 0;
    }
    const int before = errno;
    const long result = syscall(SYS_fadvise64, file, offset, size, advice);
    const int error = result == 0 ? 0 : errno;
    errno = before;
    return error;
}

[[gnu::visibility("default")]] int posix_fadvise64(int file, off64_t offset, off64_t size,
                                                   int advice) noexcept {
    return posix_fadvise(file, offset, size, advice);
}

} // extern "C"
