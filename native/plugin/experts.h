// The expert matrices that the engine has mapped, and the store that serves them.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

#include "ggml_abi.h"
#include "store.h"

namespace hotset {

// Where the store keeps a weight tensor.
struct Place {
    int layer;
    uint32_t part;
    uint32_t num_parts; // of that layer
    uint32_t capacity;  // experts of that layer that fit into memory at once
    hotset_bank bank;   // no places: the matrices do not lie evenly
};

// Reads HOTSET_RAM_BYTES (memory for experts; unset or 0: no store, experts are computed where
// they are mapped) and HOTSET_READERS (threads, default 6). False, after one line, if either makes
// no sense.
bool experts_configure();

// Tells of a weight tensor in a mapped buffer, or that the buffer goes away. When the last one
// goes, the store is closed and its threads are joined.
void experts_add(ggml::Buffer* buffer, const ggml::Tensor* weights);
void experts_remove(ggml::Buffer* buffer);

// Opens the store for what has been added, unless it is open or not wanted. False, after one
// line, if it cannot work; the engine must not start then.
bool experts_open();

// Null while there is no store.
hotset_store* experts_store();

// The layer that a weight tensor belongs to; the same for all its tensors, and for no others but
// those of a model of the same shape that was loaded at another time.
struct ExpertLayer {
    std::string name; // what the names of its tensors share: "blk.7"
    uint32_t copy;    // of this name: one for each model that is loaded
    uint32_t num_experts;
    uint64_t expert_bytes; // one expert, all its matrices
    auto operator<=>(const ExpertLayer&) const = default;
};

// For a tensor that has been added.
ExpertLayer experts_layer(const ggml::Tensor* weights);

// False if the store does not keep this tensor; it is computed where it lies then.
bool experts_find(const ggml::Tensor* weights, Place& place);

} // namespace hotset
