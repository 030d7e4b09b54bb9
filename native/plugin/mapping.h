// What the process has mapped from files, as the kernel tells it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hotset {

struct Mapping {
    uintptr_t begin, end;
    uint64_t offset;    // in the file, of `begin`
    std::string device; // as the kernel writes it
    unsigned long inode;
    std::string path;
};

std::vector<Mapping> read_mappings();

// The mapping that holds the address; null if none does.
const Mapping* mapping_of(const std::vector<Mapping>& mappings, const void* data);

// Whether the file that now has the mapping's name is the file that is mapped.
bool still_names_its_file(const Mapping& mapping);

} // namespace hotset
