// The experts' part of a graph: which rows go to which expert, and what is held in memory for them.
#pragma once

#include <cstdint>
#include <vector>

#include "block.h"
#include "ggml_abi.h"
#include "multiplier.h"

namespace hotset {

class Products {
public:
    explicit Products(ggml::Backend* cpu) : multiplier(cpu) {}
    ~Products() { let_go(); }
    Products(const Products&) = delete;
    Products& operator=(const Products&) = delete;

    // False, after one line, if weights cannot be read, the CPU backend fails, an id is out of
    // range or there is a node of another kind; the results are undefined then.
    bool compute(ggml::Graph* graph);

private:
    bool compute_block();
    bool group();
    bool compute_mapped();
    bool compute_stored();
    bool compute_whole(uint32_t num_tokens);
    bool compute_in_turns(uint32_t num_tokens, size_t size);
    void name_experts(size_t begin, size_t end);
    bool multiply_arriving(size_t first, size_t n);
    bool is_ready(size_t i) const;
    bool fetch(size_t i, size_t first);
    bool multiply();
    void let_go();

    Multiplier multiplier;

    // The batch at hand. Kept from call to call, so that a token allocates nothing.
    Block block;
    std::vector<ExpertRows> routed;
    size_t num_routed = 0;
    std::vector<int32_t> index_of; // expert -> index in routed, or -1
    std::vector<size_t> waiting, arrived;

    // What is held in memory: from the first product of a layer to its last; or, for a batch that
    // is done in turns, the experts of this turn and of the next.
    hotset_lease* lease = nullptr;
    hotset_lease* next_lease = nullptr;
    int leased_layer = -1;
    uint32_t parts_to_come = 0; // bits of the layer's parts not yet computed
    std::vector<int32_t> leased;
};

} // namespace hotset
