#include "arena.h"

#include <sys/mman.h>

#include "file.h"

namespace hotset {

Arena::Arena(std::vector<uint64_t> sizes) : part_bytes(std::move(sizes)) {
    for (const uint64_t bytes : part_bytes) {
        rooms.push_back(slot_bytes);
        slot_bytes += block_ceil(BLOCK_BYTES - 1 + bytes);
    }
}

Arena::~Arena() {
    if (memory != nullptr) {
        munmap(memory, slot_bytes * num_slots);
    }
}

bool Arena::reserve(uint32_t slots) {
    void* pages = mmap(nullptr, slot_bytes * slots, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED) {
        return false;
    }
    // Fewer misses of the address cache while computing; only a wish.
    madvise(pages, slot_bytes * slots, MADV_HUGEPAGE);
    memory = static_cast<char*>(pages);
    num_slots = slots;
    return true;
}

char* Arena::place(uint32_t slot, uint32_t part, uint64_t file_offset) const {
    return memory + slot * slot_bytes + rooms[part] + file_offset % BLOCK_BYTES;
}

} // namespace hotset
