// MUL_MAT_ID, expert by expert, on the engine's own CPU backend.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ggml_abi.h"

namespace hotset {

// The rows of one batch that were routed to one expert.
struct ExpertRows {
    int32_t expert;
    std::vector<int32_t> pairs; // token * slots + slot, ascending
};

// Computes products on `cpu`, the engine's own CPU backend, which it does not own.
//
// Each expert's product is a MUL_MAT_ID over a view of that expert alone, with all its rows of
// the batch in one operation: the same kernel on the same rows as the engine's own product, and so
// the same bits. (A plain MUL_MAT takes other kernels; splitting the rows would too.)
class Products {
public:
    explicit Products(ggml::Backend* cpu) : cpu(cpu) {}

    // False if the CPU backend fails or an id is out of range; the results are undefined then.
    bool compute(ggml::Tensor* product);

private:
    bool group(const ggml::Tensor* product);
    char* scratch_for(std::vector<char>& bytes, size_t size);

    ggml::Backend* cpu;
    // Kept from call to call, so that a token allocates nothing.
    std::vector<ExpertRows> routed;
    size_t num_routed = 0;
    std::vector<int32_t> place; // expert -> index in routed, or -1
    std::vector<char> arena, gathered, results;
    std::vector<int32_t> zeros;
};

} // namespace hotset
