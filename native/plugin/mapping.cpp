#include "mapping.h"

#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace hotset {

std::vector<Mapping> read_mappings() {
    std::vector<Mapping> mappings;
    std::FILE* maps = std::fopen("/proc/self/maps", "re");
    char* line = nullptr;
    size_t capacity = 0;
    while (maps != nullptr && getline(&line, &capacity, maps) > 0) {
        unsigned long begin, end, offset, inode;
        char device[32];
        int at_path = 0;
        if (std::sscanf(line, "%lx-%lx %*s %lx %31s %lu %n", &begin, &end, &offset, device, &inode,
                        &at_path) == 5 &&
            line[at_path] == '/') {
            std::string path = line + at_path;
            path.erase(path.find_last_not_of('\n') + 1);
            mappings.push_back({begin, end, offset, device, inode, std::move(path)});
        }
    }
    std::free(line);
    if (maps != nullptr) {
        std::fclose(maps);
    }
    return mappings;
}

const Mapping* mapping_of(const std::vector<Mapping>& mappings, const void* data) {
    const auto address = reinterpret_cast<uintptr_t>(data);
    for (const Mapping& mapping : mappings) {
        if (address >= mapping.begin && address < mapping.end) {
            return &mapping;
        }
    }
    return nullptr;
}

// Both files are compared as the kernel shows mappings: on some file systems (overlayfs, btrfs)
// fstat shows other numbers.
bool still_names_its_file(const Mapping& mapping) {
    const int file = open(mapping.path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) {
        return false;
    }
    void* probe = mmap(nullptr, 1, PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    if (probe == MAP_FAILED) {
        return false;
    }
    const std::vector<Mapping> mappings = read_mappings();
    munmap(probe, 1);
    const Mapping* named = mapping_of(mappings, probe);
    return named != nullptr && named->device == mapping.device && named->inode == mapping.inode;
}

} // namespace hotset
