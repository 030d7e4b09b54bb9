#include "experts.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "counters.h"
#include "host.h"
#include "mapping.h"

namespace hotset {

using namespace ggml;

namespace {

constexpr uint32_t DEFAULT_READERS = 6;

struct Matrix {
    Buffer* buffer;
    std::string name;
    std::string group; // what the tensors of one layer share: see group_of
    const void* data;
    uint64_t expert_bytes;
    uint32_t num_experts;
};

// Lives on the heap for as long as any weights are mapped: a static object's destructor would run
// at exit, while threads of the host may still be computing.
struct Experts {
    std::mutex mutex;
    std::vector<Matrix> matrices;
    std::map<const void*, Place> places;
    hotset_store* store = nullptr;
};

constinit Experts* experts = nullptr;
constinit hotset_config config{
    .ram_bytes = 0, .num_readers = DEFAULT_READERS, .read = nullptr, .read_context = nullptr};

bool read_number(const char* variable, uint64_t least, uint64_t most, uint64_t& number) {
    const char* text = std::getenv(variable);
    if (text == nullptr || *text == '\0') {
        return true;
    }
    char* end = nullptr;
    errno = 0;
    const unsigned long long value = std::strtoull(text, &end, 10);
    if (errno != 0 || *end != '\0' || text[0] == '-' || value < least || value > most) {
        say("expert store refused: %s is '%s', not a number from %llu to %llu", variable, text,
            static_cast<unsigned long long>(least), static_cast<unsigned long long>(most));
        return false;
    }
    number = value;
    return true;
}

// The name of a weight tensor up to its second dot, "blk.7", and its number of experts.
std::string group_of(const Tensor* weights) {
    const char* dot = std::strchr(weights->name, '.');
    dot = dot != nullptr ? std::strchr(dot + 1, '.') : nullptr;
    const size_t length = dot != nullptr ? dot - weights->name : std::strlen(weights->name);
    return std::string(weights->name, length) + "/" + std::to_string(weights->ne[2]);
}

std::string name_of(const std::string& group) { return group.substr(0, group.find('/')); }

// Gives the store one layer per group, its parts in the order in which they were added. The shards
// of a model are buffers of their own, so a layer may lie in two; a name that comes again belongs
// to another model.
bool add_layers(hotset_store* store, const std::vector<Matrix>& matrices,
                const std::vector<Mapping>& mappings, std::map<const void*, Place>& places) {
    std::map<std::pair<uint32_t, std::string>, std::vector<const Matrix*>> groups;
    std::map<std::string, uint32_t> num_seen;
    for (const Matrix& matrix : matrices) {
        groups[{num_seen[matrix.name]++, matrix.group}].push_back(&matrix);
    }
    for (const auto& [key, members] : groups) {
        std::vector<hotset_part> parts;
        uint64_t expert_bytes = 0;
        for (const Matrix* matrix : members) {
            const Mapping* mapping = mapping_of(mappings, matrix->data);
            if (mapping == nullptr) {
                say("expert store: cannot tell which file holds %s", key.second.c_str());
                return false;
            }
            parts.push_back(
                {mapping->path.c_str(),
                 mapping->offset + reinterpret_cast<uintptr_t>(matrix->data) - mapping->begin,
                 matrix->expert_bytes});
            expert_bytes += matrix->expert_bytes;
        }
        const auto num_parts = static_cast<uint32_t>(parts.size());
        const int layer =
            hotset_store_add_layer(store, parts.data(), num_parts, members[0]->num_experts);
        if (layer < 0) {
            say("expert store: %s: %s", key.second.c_str(), hotset_store_error(store));
            return false;
        }
        counters_add_layer(store, layer, name_of(key.second).c_str(), key.first,
                           members[0]->num_experts, expert_bytes);
        for (uint32_t part = 0; part < num_parts; ++part) {
            places[members[part]->data] = {layer, part, num_parts, 0, {}};
        }
    }
    return true;
}

// The store opens files by name. Between the engine's mapping and that, a name can have been given
// to another file.
bool check_files(const std::vector<Matrix>& matrices, const std::vector<Mapping>& mappings) {
    std::set<std::string> checked;
    for (const Matrix& matrix : matrices) {
        const Mapping* mapping = mapping_of(mappings, matrix.data);
        if (checked.insert(mapping->path).second && !still_names_its_file(*mapping)) {
            const size_t at_mark = mapping->path.find(" (deleted)"); // the kernel's
            say("expert store: %s: was replaced during the start; start again",
                mapping->path.substr(0, at_mark).c_str());
            return false;
        }
    }
    return true;
}

} // namespace

bool experts_configure() {
    uint64_t num_readers = DEFAULT_READERS;
    if (!read_number("HOTSET_RAM_BYTES", 0, UINT64_MAX / 2, config.ram_bytes) ||
        !read_number("HOTSET_READERS", 1, 64, num_readers)) {
        return false;
    }
    config.num_readers = static_cast<uint32_t>(num_readers);
    if (experts == nullptr) {
        experts = new Experts;
    }
    return true;
}

void experts_add(Buffer* buffer, const Tensor* weights) {
    const std::lock_guard lock(experts->mutex);
    experts->matrices.push_back({.buffer = buffer,
                                 .name = weights->name,
                                 .group = group_of(weights),
                                 .data = weights->data,
                                 .expert_bytes = weights->nb[2],
                                 .num_experts = static_cast<uint32_t>(weights->ne[2])});
}

void experts_remove(Buffer* buffer) {
    const std::lock_guard lock(experts->mutex);
    std::erase_if(experts->matrices,
                  [buffer](const Matrix& matrix) { return matrix.buffer == buffer; });
    if (experts->matrices.empty() && experts->store != nullptr) {
        hotset_store_free(experts->store);
        counters_closed();
        experts->store = nullptr;
        experts->places.clear();
    }
}

bool experts_open() {
    const std::lock_guard lock(experts->mutex);
    if (experts->store != nullptr || experts->matrices.empty() || config.ram_bytes == 0) {
        return true;
    }
    hotset_store* store = hotset_store_new();
    counters_begin(store);
    std::map<const void*, Place> places;
    const std::vector<Mapping> mappings = read_mappings();
    bool opened = add_layers(store, experts->matrices, mappings, places) &&
                  check_files(experts->matrices, mappings);
    if (opened && hotset_store_open(store, &config) != 0) {
        say("expert store: %s", hotset_store_error(store));
        opened = false;
    }
    // Again, now that the store has them open: nothing can come between any more.
    opened = opened && check_files(experts->matrices, mappings);
    if (!opened) {
        hotset_store_free(store);
        return false;
    }
    for (auto& [data, place] : places) {
        place.capacity = hotset_store_capacity(store, place.layer);
        hotset_store_bank(store, place.layer, place.part, &place.bank);
    }
    counters_opened(store);
    experts->places = std::move(places);
    experts->store = store;
    return true;
}

ExpertLayer experts_layer(const Tensor* weights) {
    const std::lock_guard lock(experts->mutex);
    const std::string group = group_of(weights);
    std::map<std::string, uint32_t> num_seen;
    std::vector<uint64_t> expert_bytes; // by copy
    uint32_t copy = 0;
    for (const Matrix& matrix : experts->matrices) {
        if (matrix.group != group) {
            continue;
        }
        const uint32_t at = num_seen[matrix.name]++;
        expert_bytes.resize(std::max<size_t>(expert_bytes.size(), at + 1));
        expert_bytes[at] += matrix.expert_bytes;
        if (matrix.data == weights->data) {
            copy = at;
        }
    }
    return {name_of(group), copy, static_cast<uint32_t>(weights->ne[2]), expert_bytes.at(copy)};
}

hotset_store* experts_store() { return experts->store; }

bool experts_find(const Tensor* weights, Place& place) {
    const std::lock_guard lock(experts->mutex);
    const auto found = experts->places.find(weights->data);
    if (found == experts->places.end()) {
        return false;
    }
    place = found->second;
    return true;
}

} // namespace hotset
