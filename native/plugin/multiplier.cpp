#include "multiplier.h"

#include <algorithm>
#include <cstring>

#include "handshake.h"
#include "host.h"

namespace hotset {

using namespace ggml;

namespace {

constexpr size_t TENSORS_PER_NODE = 4; // itself and up to three sources

// Copies of rows, and their results, at one time.
constexpr size_t MOST_COPY_BYTES = 16 << 20;

// The CPU backend keeps a table of 8 bytes for each row and matrix of an operation, used or not.
// Little of it is touched, but where the system hands out huge pages unasked all of it may become
// real: it must stay below this part of the bank.
constexpr size_t TABLE_ENTRY_BYTES = 8;
constexpr size_t BANK_PER_TABLE = 32;

bool has_room_for_table(const hotset_bank& bank, size_t num_rows) {
    return bank.num_places > 0 &&
           num_rows * TABLE_ENTRY_BYTES * BANK_PER_TABLE <= bank.stride_bytes;
}

bool all_have_room(const Block& block, size_t num_rows) {
    return std::all_of(block.steps.begin(), block.steps.end(), [&](const Step& step) {
        return !step.is_product || has_room_for_table(step.bank, num_rows);
    });
}

// The same in every bank of the block: an expert's matrices lie in places of one number.
int32_t place_of(const Block& block, const ExpertRows& expert) {
    const Step& product = block.steps.front();
    const auto distance = static_cast<const char*>(expert.weights[product.part]) -
                          static_cast<const char*>(product.bank.base);
    return static_cast<int32_t>(distance / product.bank.stride_bytes);
}

size_t row_bytes(const Tensor* rows) { return rows->ne[0] * sizeof(float); }

// A tensor over memory that is already there.
Tensor* over(Context* context, int type, int64_t ne0, int64_t ne1, int64_t ne2, const void* data) {
    Tensor* tensor = host.ggml_new_tensor_4d(context, type, ne0, ne1, ne2, 1);
    tensor->data = const_cast<void*>(data);
    return tensor;
}

// Over the memory of another.
Tensor* over(Context* context, const Tensor* other) {
    Tensor* tensor =
        over(context, other->type, other->ne[0], other->ne[1], other->ne[2], other->data);
    std::copy_n(other->nb, 4, tensor->nb);
    return tensor;
}

// All rows of a tensor as one list.
Tensor* as_list(Context* context, const Tensor* rows) {
    Tensor* list = over(context, TYPE_F32, rows->ne[0], rows->ne[1] * rows->ne[2], 1, rows->data);
    list->nb[1] = rows->nb[rows->ne[1] == 1 ? 2 : 1];
    return list;
}

// The matrices of a bank, each shaped as one of `weights`.
Tensor* over_bank(Context* context, const Tensor* weights, const hotset_bank& bank) {
    Tensor* matrices =
        over(context, weights->type, weights->ne[0], weights->ne[1], bank.num_places, bank.base);
    if (bank.num_places > 1) {
        matrices->nb[2] = bank.stride_bytes;
        matrices->nb[3] = bank.stride_bytes * bank.num_places;
    }
    return matrices;
}

// Makes `result` the result of the step's operation.
void become(Tensor* result, const Step& step, Tensor* first, Tensor* second, Tensor* third) {
    result->op = step.node->op;
    std::copy_n(step.node->op_params, std::size(step.node->op_params), result->op_params);
    result->src[0] = first;
    result->src[1] = second;
    result->src[2] = third;
}

} // namespace

bool Multiplier::compute(const Block& block, std::span<const ExpertRows> routed,
                         const std::vector<size_t>& which) {
    return which.size() == routed.size() && all_have_room(block, block.num_pairs())
               ? compute_all(block, routed)
               : compute_some(block, routed, which);
}

// As the engine would do it itself.
bool Multiplier::compute_alone(const Block& block) {
    return run(1, [&](Context* context, Graph* graph) {
        const Step& step = block.steps.front();
        Tensor* sources[3] = {};
        for (size_t i = 0; i < std::size(sources); ++i) {
            sources[i] = step.node->src[i] != nullptr ? over(context, step.node->src[i]) : nullptr;
        }
        Tensor* node = over(context, step.node);
        become(node, step, sources[0], sources[1], sources[2]);
        host.ggml_build_forward_expand(graph, node);
    });
}

// The whole batch, on the rows and results where they lie: what the engine would do itself, with
// the banks for its weights.
bool Multiplier::compute_all(const Block& block, std::span<const ExpertRows> routed) {
    places.resize(block.num_pairs());
    for (const ExpertRows& expert : routed) {
        const int32_t place = place_of(block, expert);
        for (const int32_t pair : expert.pairs) {
            places[pair] = place;
        }
    }
    return run(block.steps.size(), [&](Context* context, Graph* graph) {
        for (const Step& step : block.steps) {
            const Tensor* const* source = step.node->src;
            Tensor* node = over(context, step.node);
            if (step.is_product) {
                become(
                    node, step, over_bank(context, source[0], step.bank), over(context, source[1]),
                    over(context, TYPE_I32, block.ids->ne[0], block.ids->ne[1], 1, places.data()));
            } else {
                become(node, step, over(context, source[0]),
                       source[1] != nullptr ? over(context, source[1]) : nullptr,
                       source[2] != nullptr ? over(context, source[2]) : nullptr);
            }
            host.ggml_build_forward_expand(graph, node);
        }
    });
}

// A part of the batch: its rows are gathered, go through all steps, and every result is put back;
// a group of experts at a time.
bool Multiplier::compute_some(const Block& block, std::span<const ExpertRows> routed,
                              const std::vector<size_t>& which) {
    size_t bytes_per_row = 0;
    for (const Tensor* input : block.inputs) {
        bytes_per_row += row_bytes(input);
    }
    for (const Step& step : block.steps) {
        bytes_per_row += row_bytes(step.node);
    }
    form_groups(block, routed, which, MOST_COPY_BYTES / bytes_per_row);
    const size_t most_rows =
        std::max_element(groups.begin(), groups.end(), [](const Group& a, const Group& b) {
            return a.num_rows < b.num_rows;
        })->num_rows;
    char* const memory = lay_out(block, most_rows);
    const size_t nodes_per_group = block.inputs.size() + 2 * block.steps.size();

    return run(nodes_per_group * groups.size(), [&](Context* context, Graph* graph) {
        for (const Group& group : groups) {
            add_group(context, graph, block, group, memory);
        }
    });
}

// The nodes that take a group's rows through the block, in `memory`.
void Multiplier::add_group(Context* context, Graph* graph, const Block& block, const Group& group,
                           char* memory) {
    const auto n = static_cast<int64_t>(group.num_rows);
    const auto add = [&](Tensor* node, const void* data) {
        node->data = const_cast<void*>(data);
        host.ggml_build_forward_expand(graph, node);
    };
    const auto of_group = [&](const auto& list, int64_t ne0, int64_t ne1) {
        const int type = sizeof list[0] == sizeof(int64_t) ? TYPE_I64 : TYPE_I32;
        return over(context, type, ne0, ne1, 1, list.data() + group.first_row);
    };
    // The group's rows of a source, as one row for each of n tokens.
    const auto rows_of = [&](const Source& source, const Tensor* tensor) {
        const bool is_outside = source.step == OUTSIDE;
        Tensor* rows = over(context, TYPE_F32, tensor->ne[0], 1, n,
                            is_outside ? memory + inputs_at[source.input]
                                       : memory + results_at[source.step] + source.offset);
        rows->nb[1] = rows->nb[2] = row_bytes(is_outside ? tensor : block.steps[source.step].node);
        rows->nb[3] = rows->nb[2] * n;
        return rows;
    };
    for (size_t i = 0; i < block.inputs.size(); ++i) {
        add(host.ggml_get_rows(context, as_list(context, block.inputs[i]),
                               of_group(origins[i], n, 1)),
            memory + inputs_at[i]);
    }
    for (size_t i = 0; i < block.steps.size(); ++i) {
        const Step& step = block.steps[i];
        const Tensor* const* source = step.node->src;
        Tensor* node = over(context, TYPE_F32, step.node->ne[0], 1, n, memory + results_at[i]);
        if (step.is_product) {
            const hotset_bank bank = group.alone != nullptr
                                         ? hotset_bank{group.alone->weights[step.part], 0, 1}
                                         : step.bank;
            become(node, step, over_bank(context, source[0], bank),
                   rows_of(step.sources[1], source[1]), of_group(places, 1, n));
        } else if (step.node->op == ops.add_id) {
            become(node, step, rows_of(step.sources[0], source[0]), over(context, source[1]),
                   of_group(experts, 1, n));
        } else {
            become(node, step, rows_of(step.sources[0], source[0]),
                   source[1] != nullptr ? rows_of(step.sources[1], source[1]) : nullptr, nullptr);
        }
        host.ggml_build_forward_expand(graph, node);
    }
    for (size_t i = 0; i < block.steps.size(); ++i) {
        const Step& step = block.steps[i];
        if (step.is_kept) {
            Tensor* made = over(context, TYPE_F32, step.node->ne[0], n, 1, memory + results_at[i]);
            add(host.ggml_set_rows(context, as_list(context, step.node), made,
                                   of_group(targets, n, 1)),
                step.node->data);
        }
    }
}

// Room for the copies and results of a group, used again by the next.
char* Multiplier::lay_out(const Block& block, size_t num_rows) {
    size_t size = 0;
    const auto place = [&](std::vector<size_t>& at, const Tensor* rows) {
        at.push_back(size);
        size += row_bytes(rows) * num_rows;
    };
    inputs_at.clear();
    results_at.clear();
    for (const Tensor* input : block.inputs) {
        place(inputs_at, input);
    }
    for (const Step& step : block.steps) {
        place(results_at, step.node);
    }
    if (rows_memory.size() < size) {
        rows_memory.resize(size);
    }
    return rows_memory.data();
}

// Experts of a bank share operations, as long as their rows stay few enough to be copied.
void Multiplier::form_groups(const Block& block, std::span<const ExpertRows> routed,
                             const std::vector<size_t>& which, size_t most_rows) {
    groups.clear();
    targets.clear();
    places.clear();
    experts.clear();
    origins.resize(std::max(origins.size(), block.inputs.size()));
    for (std::vector<int32_t>& origin : origins) {
        origin.clear();
    }
    for (const size_t i : which) {
        const std::vector<int32_t>& pairs = routed[i].pairs;
        const size_t joined = groups.empty() ? 0 : groups.back().num_rows + pairs.size();
        if (joined == 0 || joined > most_rows || !all_have_room(block, joined)) {
            groups.push_back({.alone = all_have_room(block, pairs.size()) ? nullptr : &routed[i],
                              .first_row = targets.size(),
                              .num_rows = 0});
        }
        Group& group = groups.back();
        group.num_rows += pairs.size();
        const int32_t place = group.alone != nullptr ? 0 : place_of(block, routed[i]);
        for (const int32_t pair : pairs) {
            targets.push_back(pair);
            places.push_back(place);
            experts.push_back(routed[i].expert);
        }
        for (size_t input = 0; input < block.inputs.size(); ++input) {
            // One row per token serves all its slots, or each slot has its own.
            const int64_t slots = block.inputs[input]->ne[1] == 1 ? block.ids->ne[0] : 1;
            for (const int32_t pair : pairs) {
                origins[input].push_back(static_cast<int32_t>(pair / slots));
            }
        }
    }
}

// Computes the graph of at most `num_nodes` nodes that `build` makes.
template <class Build>
bool Multiplier::run(size_t num_nodes, const Build& build) {
    const size_t memory_bytes =
        (1 + TENSORS_PER_NODE * num_nodes) * host.ggml_tensor_overhead() +
        host.ggml_graph_overhead_custom(TENSORS_PER_NODE * num_nodes, false);
    if (graph_memory.size() < memory_bytes) {
        graph_memory.resize(memory_bytes);
    }
    Context* context = host.ggml_init(
        {.mem_size = memory_bytes, .mem_buffer = graph_memory.data(), .no_alloc = true});
    if (context == nullptr) {
        return false;
    }
    Graph* graph = host.ggml_new_graph_custom(context, TENSORS_PER_NODE * num_nodes, false);
    build(context, graph);
    const bool done = host.ggml_backend_graph_compute(cpu, graph) == STATUS_SUCCESS;
    host.ggml_free(context);
    return done;
}

} // namespace hotset
