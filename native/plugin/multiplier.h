// Blocks, computed on the engine's own CPU backend.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "block.h"
#include "ggml_abi.h"

namespace hotset {

// The rows of one batch that were routed to one expert.
struct ExpertRows {
    int32_t expert;
    std::vector<int32_t> pairs;            // token * slots + slot, ascending
    const void* weights[HOTSET_MAX_PARTS]; // by part
};

// Computes on `cpu`, the engine's own CPU backend, which it does not own.
//
// All rows of the batch that go to one expert are multiplied in one MUL_MAT_ID: the same kernel on
// the same rows as the engine's own product, and so the same bits. (A plain MUL_MAT takes other
// kernels; splitting an expert's rows would too.) What lies between products works row by row.
class Multiplier {
public:
    explicit Multiplier(ggml::Backend* cpu) : cpu(cpu) {}

    // Computes the rows of routed[i], for each i of `which`, whose weights are there, and puts the
    // results where the engine wants them. False if the CPU backend fails.
    bool compute(const Block& block, std::span<const ExpertRows> routed,
                 const std::vector<size_t>& which);

    // A block without products.
    bool compute_alone(const Block& block);

private:
    bool compute_all(const Block& block, std::span<const ExpertRows> routed);
    bool compute_some(const Block& block, std::span<const ExpertRows> routed,
                      const std::vector<size_t>& which);
    void form_groups(const Block& block, std::span<const ExpertRows> routed,
                     const std::vector<size_t>& which, size_t most_rows);
    struct Group;
    void add_group(ggml::Context* context, ggml::Graph* graph, const Block& block,
                   const Group& group, char* memory);
    char* lay_out(const Block& block, size_t num_rows);
    template <class Build>
    bool run(size_t num_nodes, const Build& build);

    ggml::Backend* cpu;

    // Rows that are computed together.
    struct Group {
        const ExpertRows* alone; // the one expert, whose weights are taken by themselves; or null
        size_t first_row, num_rows; // in the lists below
    };
    // Kept from call to call, so that a token allocates nothing.
    std::vector<Group> groups;
    std::vector<std::vector<int32_t>> origins; // for each input: the row that each is a copy of
    std::vector<int64_t> targets;              // the row of the results that each becomes
    std::vector<int32_t> places;               // of each one's weights, in the banks
    std::vector<int32_t> experts;              // that each goes to
    std::vector<size_t> inputs_at, results_at; // in rows_memory: copies of inputs, results of steps
    std::vector<char> graph_memory, rows_memory;
};

} // namespace hotset
