#include "file.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace hotset {

namespace {

std::string failure(const std::string& path, const std::string& what) { return path + ": " + what; }

} // namespace

File::~File() {
    for (const int file : {direct, buffered}) {
        if (file >= 0) {
            close(file);
        }
    }
}

std::string File::open() {
    buffered = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat info;
    if (buffered < 0 || fstat(buffered, &info) != 0) {
        return failure(path, std::strerror(errno));
    }
    size_bytes = static_cast<uint64_t>(info.st_size);
    changed_s = info.st_mtim.tv_sec;
    changed_ns = info.st_mtim.tv_nsec;
    direct = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
    return {};
}

std::string File::changed() const {
    struct stat info;
    if (fstat(buffered, &info) != 0) {
        return failure(path, std::strerror(errno));
    }
    if (static_cast<uint64_t>(info.st_size) != size_bytes || info.st_mtim.tv_sec != changed_s ||
        info.st_mtim.tv_nsec != changed_ns) {
        return failure(path, "changed while in use; start again");
    }
    return {};
}

std::string File::read(char* memory, uint64_t offset, uint64_t size, ReadFunction function,
                       void* context, uint64_t& moved) const {
    const uint64_t begin = block_floor(offset);
    const uint64_t end = block_ceil(offset + size);
    char* target = memory - (offset - begin);
    int file = direct >= 0 ? direct : buffered;
    uint64_t at = begin;
    while (at < offset + size) {
        const ssize_t got =
            function(context, file, target + (at - begin), end - at, static_cast<off_t>(at));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0 && errno == EINVAL && file == direct && file != buffered) {
            file = buffered; // some file systems open for direct reads and then refuse them
            continue;
        }
        if (got < 0) {
            return failure(path, "read at " + std::to_string(at) + ": " + std::strerror(errno));
        }
        if (got == 0) {
            return failure(path, "ends at " + std::to_string(at) + ", before " +
                                     std::to_string(offset + size));
        }
        at += static_cast<uint64_t>(got);
        moved += static_cast<uint64_t>(got);
        if (at % BLOCK_BYTES != 0) {
            file = buffered; // a direct read cannot begin there
        }
    }
    if (file == buffered) {
        posix_fadvise(buffered, static_cast<off_t>(begin), static_cast<off_t>(end - begin),
                      POSIX_FADV_DONTNEED);
    }
    return changed();
}

} // namespace hotset
