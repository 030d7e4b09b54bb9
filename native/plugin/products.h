// MUL_MAT_ID, expert by expert, on the engine's own CPU backend.
#pragma once

#include <cstdint>
#include <vector>

#include "experts.h"
#include "ggml_abi.h"

namespace hotset {

// The rows of one batch that were routed to one expert.
struct ExpertRows {
    int32_t expert;
    std::vector<int32_t> pairs; // token * slots + slot, ascending
    const void* weights;
};

// Computes products on `cpu`, the engine's own CPU backend, which it does not own.
//
// All rows of the batch that go to one expert are multiplied in one MUL_MAT_ID: the same kernel on
// the same rows as the engine's own product, and so the same bits. (A plain MUL_MAT takes other
// kernels; splitting an expert's rows would too.)
class Products {
public:
    explicit Products(ggml::Backend* cpu) : cpu(cpu) {}
    ~Products() { let_go(); }
    Products(const Products&) = delete;
    Products& operator=(const Products&) = delete;

    // False, after one line, if weights cannot be read, the CPU backend fails or an id is out of
    // range; the results are undefined then.
    bool compute(ggml::Tensor* product);

private:
    bool group(const ggml::Tensor* product);
    bool compute_mapped(ggml::Tensor* product);
    bool compute_stored(ggml::Tensor* product, const Place& place);
    bool compute_whole(ggml::Tensor* product, const Place& place, uint32_t num_tokens);
    bool compute_in_turns(ggml::Tensor* product, const Place& place, uint32_t num_tokens,
                          size_t size);
    void name_experts(size_t begin, size_t end);
    bool multiply_arriving(ggml::Tensor* product, const Place& place, size_t first, size_t n);
    void let_go();
    bool multiply(ggml::Tensor* product, const std::vector<size_t>& which, hotset_bank bank);
    bool multiply_all(ggml::Tensor* product, hotset_bank bank);
    bool multiply_some(ggml::Tensor* product, const std::vector<size_t>& which, hotset_bank bank);
    void form_groups(const std::vector<size_t>& which, hotset_bank bank, size_t most_rows,
                     int64_t pairs_per_row);
    template <class Build>
    bool run(size_t num_nodes, const Build& build);

    ggml::Backend* cpu;

    // The batch at hand. Kept from call to call, so that a token allocates nothing.
    std::vector<ExpertRows> routed;
    size_t num_routed = 0;
    std::vector<int32_t> index_of; // expert -> index in routed, or -1
    std::vector<size_t> waiting, arrived;
    std::vector<char> graph_memory, rows_in, rows_out;

    // Rows that are multiplied in one operation.
    struct Group {
        hotset_bank bank;
        size_t first_row, num_rows; // in the lists below
    };
    std::vector<Group> groups;
    std::vector<int32_t> sources; // the row of the batch that each is a copy of
    std::vector<int64_t> targets; // the row of the product that each becomes
    std::vector<int32_t> places;  // of each one's weights, in the bank

    // What is held in memory: from the first product of a layer to its last; or, for a batch that
    // is done in turns, the experts of this turn and of the next.
    hotset_lease* lease = nullptr;
    hotset_lease* next_lease = nullptr;
    int leased_layer = -1;
    uint32_t parts_to_come = 0; // bits of the layer's parts not yet computed
    std::vector<int32_t> leased;
};

} // namespace hotset
