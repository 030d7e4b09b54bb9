// A model file, read past the page cache where the file system allows it.
#pragma once

#include <cstdint>
#include <string>
#include <sys/types.h>

namespace hotset {

// Memory, file offset and length of a direct read are multiples of this.
constexpr uint64_t BLOCK_BYTES = 4096;

constexpr uint64_t block_floor(uint64_t bytes) { return bytes / BLOCK_BYTES * BLOCK_BYTES; }
constexpr uint64_t block_ceil(uint64_t bytes) { return block_floor(bytes + BLOCK_BYTES - 1); }

using ReadFunction = ssize_t (*)(void* context, int file, void* memory, size_t size, off_t offset);

class File {
public:
    explicit File(std::string path) : path(std::move(path)) {}
    ~File();
    File(const File&) = delete;
    File& operator=(const File&) = delete;

    // Empty on success, else what is wrong.
    std::string open();

    // Reads [offset, offset + size) to `memory`, which must lie as far behind a block boundary as
    // `offset` does; the rest of the first and last block around it is overwritten too. Adds the
    // bytes that were moved to `moved`. Empty on success: the whole range, of the same file that
    // was opened.
    std::string read(char* memory, uint64_t offset, uint64_t size, ReadFunction function,
                     void* context, uint64_t& moved) const;

    // Empty while the file is as it was when it was opened, else what is wrong.
    std::string changed() const;

    const std::string path;

private:
    int direct = -1; // -1 where the file system has no direct reads
    int buffered = -1;
    uint64_t size_bytes = 0;
    int64_t changed_s = 0, changed_ns = 0;
};

} // namespace hotset
