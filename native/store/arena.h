// Memory for units: slots of one size, each with a room per part.
#pragma once

#include <cstdint>
#include <vector>

namespace hotset {

// Parts of equal sizes share slots. A room is a block longer than its matrix, so that a matrix can
// lie as far behind a block boundary as it does in its file; then it is read in place, directly.
class Arena {
public:
    explicit Arena(std::vector<uint64_t> part_bytes);
    ~Arena();
    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;

    // Reserves room for `num_slots`; pages come when they are first written. False: no memory.
    bool reserve(uint32_t num_slots);

    // Where part `part` of a unit in `slot` lies, given where it lies in its file.
    char* place(uint32_t slot, uint32_t part, uint64_t file_offset) const;

    const std::vector<uint64_t> part_bytes;
    uint64_t slot_bytes = 0;
    uint32_t num_slots = 0;

private:
    std::vector<uint64_t> rooms; // offset of each part's room in a slot
    char* memory = nullptr;
};

} // namespace hotset
