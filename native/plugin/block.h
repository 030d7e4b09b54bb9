// What the engine wants of the experts of one layer, as one piece of work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "experts.h"
#include "ggml_abi.h"

namespace hotset {

// A source that no step of the block makes.
constexpr int OUTSIDE = -1;

struct Source {
    int step = OUTSIDE; // the step of the block that makes it
    size_t offset = 0;  // where it begins in that step's rows, in bytes
    size_t input = 0;   // if OUTSIDE: its index in `inputs`
};

// A node of the engine's graph. Its result has one row for each pair of a token and a slot.
struct Step {
    ggml::Tensor* node;
    Source sources[2]; // as many as it has, of rows; of a product only the second
    bool is_product;
    // Whether the result is there when the block is done. Not if a later step gets its memory:
    // the engine gives memory away only when nobody needs what is in it.
    bool is_kept = true;
    // Of a product:
    hotset_bank bank{};
    uint32_t part = 0;
};

// Products of one layer for one choice of experts (up, gate, down), and the operations from row to
// row that lie between them (activation, bias). Every row goes its own way through a block, so that
// some experts can be computed to the end while others are still on their way. It reads nothing
// from outside that it writes itself. A prompt has one product in each block.
class Block {
public:
    // Takes nodes of the graph from `first` on, as long as they belong together. Returns the index
    // of the first node that does not; `steps` is empty if there was no node to compute.
    int take(ggml::Graph* graph, int first);

    std::vector<Step> steps;
    std::vector<const ggml::Tensor*> inputs; // rows from outside, each once
    size_t num_products = 0;                 // 0: a single step, which is none
    const ggml::Tensor* ids = nullptr;       // of the products
    int64_t num_experts = 0;
    bool is_stored = false; // else the weights are used where the engine has mapped them
    Place place{};          // of the first product, if stored
    uint32_t parts = 0;     // bits of the layer's parts that the products need

    int64_t num_pairs() const { return ids->ne[0] * ids->ne[1]; }

private:
    bool add(ggml::Tensor* node);
    bool add_product(Step& step);
    bool add_between(Step& step);
    bool find(const ggml::Tensor* tensor, Source& source);
    bool overlaps_a_result(const ggml::Tensor* tensor) const;
};

// Is this an operation from row to row, on the results of products whose weights are ours?
bool follows_product(const ggml::Tensor* op);

} // namespace hotset
