// For tests only (LD_PRELOAD): a disk that fails on demand.
//
// HOTSET_TEST_FAULT names a file; it is read anew each time, and without it nothing is wrong.
//   eio BEGIN END     reads that touch these bytes of a file fail
//   end BEGIN END     reads that touch them find the end of the file there
//   swap FROM TO      FROM gets the name TO when the engine has mapped a file

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

struct Fault {
    char kind[8] = "";
    unsigned long long begin = 0, end = 0;
    char from[1024] = "", to[1024] = "";
};

Fault read_fault() {
    Fault fault;
    const char* path = std::getenv("HOTSET_TEST_FAULT");
    std::FILE* file = path != nullptr ? std::fopen(path, "re") : nullptr;
    if (file != nullptr) {
        if (std::fscanf(file, "%7s", fault.kind) != 1 ||
            (std::fscanf(file, "%llu %llu", &fault.begin, &fault.end) != 2 &&
             std::fscanf(file, "%1023s %1023s", fault.from, fault.to) != 2)) {
            fault.kind[0] = '\0'; // half written
        }
        std::fclose(file);
    }
    return fault;
}

ssize_t read_or_fail(int file, void* memory, size_t size, off_t offset) {
    const Fault fault = read_fault();
    const auto begin = static_cast<unsigned long long>(offset);
    if (begin < fault.end && begin + size > fault.begin) {
        if (fault.kind[0] == 'e' && fault.kind[1] == 'i') {
            errno = EIO;
            return -1;
        }
        if (fault.kind[0] == 'e') {
            size = begin < fault.begin ? fault.begin - begin : 0;
        }
    }
    return syscall(SYS_pread64, file, memory, size, offset);
}

void swap_after_mapping(int advice) {
    const Fault fault = read_fault();
    if (advice == MADV_WILLNEED && fault.kind[0] == 's') {
        std::rename(fault.from, fault.to); // fails from the second time on
    }
}

} // namespace

extern "C" {

ssize_t pread(int file, void* memory, size_t size, off_t offset) {
    return read_or_fail(file, memory, size, offset);
}

ssize_t pread64(int file, void* memory, size_t size, off64_t offset) {
    return read_or_fail(file, memory, size, offset);
}

int madvise(void* address, size_t size, int advice) noexcept {
    swap_after_mapping(advice);
    return reinterpret_cast<decltype(madvise)*>(dlsym(RTLD_NEXT, "madvise"))(address, size, advice);
}

int posix_madvise(void* address, size_t size, int advice) noexcept {
    swap_after_mapping(advice);
    return reinterpret_cast<decltype(posix_madvise)*>(dlsym(RTLD_NEXT, "posix_madvise"))(
        address, size, advice);
}

} // extern "C"
