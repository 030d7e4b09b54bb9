#include "block.h"

#include <algorithm>

#include "handshake.h"
#include "host.h"
#include "plugin.h"

namespace hotset {

using namespace ggml;

namespace {

const Tensor* base_of(const Tensor* tensor) {
    return tensor->view_src != nullptr ? tensor->view_src : tensor;
}

bool is_empty_op(const Tensor* node) {
    return node->op == ops.none || node->op == ops.reshape || node->op == ops.view ||
           node->op == ops.permute || node->op == ops.transpose;
}

bool overlap(const Tensor* a, const Tensor* b) {
    const auto* a_begin = static_cast<const char*>(a->data);
    const auto* b_begin = static_cast<const char*>(b->data);
    return a_begin < b_begin + host.ggml_nbytes(b) && b_begin < a_begin + host.ggml_nbytes(a);
}

bool same_lists(const Tensor* a, const Tensor* b) {
    return a->data == b->data && std::equal(a->ne, a->ne + 4, b->ne) &&
           std::equal(a->nb, a->nb + 4, b->nb);
}

// A part of each row of `whole`?
bool is_of_its_rows(const Tensor* part, const Tensor* whole) {
    const auto* begin = static_cast<const char*>(whole->data);
    const auto* at = static_cast<const char*>(part->data);
    return part->type == TYPE_F32 && part->nb[0] == sizeof(float) && part->ne[1] == whole->ne[1] &&
           part->ne[2] == whole->ne[2] && part->nb[1] == whole->nb[1] &&
           part->nb[2] == whole->nb[2] && at >= begin &&
           at + part->ne[0] * sizeof(float) <= begin + whole->ne[0] * sizeof(float);
}

bool is_our_product(const Tensor* op) {
    return op->op == ops.mul_mat_id && op->src[0]->ne[2] > 1 && op->src[0]->buffer != nullptr &&
           host.ggml_backend_buffer_get_type(op->src[0]->buffer) == &buffer_type;
}

} // namespace

bool follows_product(const Tensor* op) {
    const auto is_result = [](const Tensor* tensor) {
        const Tensor* base = base_of(tensor);
        return tensor->type == TYPE_F32 && tensor->nb[0] == sizeof(float) &&
               (is_our_product(base) ||
                (base->op == ops.add_id && is_our_product(base_of(base->src[0]))));
    };
    if (op->type != TYPE_F32 || op->nb[0] != sizeof(float)) {
        return false;
    }
    if (op->op == ops.glu) {
        return is_result(op->src[0]) && (op->src[1] == nullptr || is_result(op->src[1]));
    }
    return op->op == ops.add_id && is_our_product(base_of(op->src[0])) &&
           op->src[1]->type == TYPE_F32 && op->src[2]->type == TYPE_I32;
}

int Block::take(Graph* graph, int first) {
    steps.clear();
    inputs.clear();
    num_products = 0;
    parts = 0;
    const int num_nodes = host.ggml_graph_n_nodes(graph);
    int i = first;
    for (; i < num_nodes; ++i) {
        Tensor* node = host.ggml_graph_node(graph, i);
        if (!is_empty_op(node) && !add(node)) {
            break;
        }
    }
    for (size_t earlier = 0; earlier < steps.size(); ++earlier) {
        steps[earlier].is_kept = std::none_of(
            steps.begin() + static_cast<std::ptrdiff_t>(earlier) + 1, steps.end(),
            [&](const Step& later) { return overlap(later.node, steps[earlier].node); });
    }
    return i;
}

bool Block::add(Tensor* node) {
    // Reading hides behind a prompt's products anyway; and when its first product is done, all is
    // there, and the next work on rows and results where they lie.
    if (num_products > 0 && ids->ne[1] > HOTSET_MOST_DECODED_TOKENS) {
        return false;
    }
    Step step{.node = node, .sources = {}, .is_product = node->op == ops.mul_mat_id};
    const size_t num_inputs = inputs.size();
    bool belongs = step.is_product ? add_product(step) : add_between(step);
    // What comes from outside must still be there for the experts that are computed last.
    belongs = belongs && (num_products == 0 ||
                          std::none_of(inputs.begin(), inputs.end(),
                                       [&](const Tensor* input) { return overlap(node, input); }));
    if (!belongs) {
        inputs.resize(num_inputs);
        return false;
    }
    if (step.is_product) {
        num_products += 1;
        parts |= 1U << step.part;
    }
    steps.push_back(step);
    return true;
}

bool Block::add_product(Step& step) {
    const Tensor* node = step.node;
    Place here;
    const bool stored = experts_find(node->src[0], here);
    if (steps.empty()) {
        ids = node->src[2];
        num_experts = node->src[0]->ne[2];
        is_stored = stored;
        place = here;
    } else if (num_products == 0 || num_products == HOTSET_MAX_PARTS || stored != is_stored ||
               node->src[0]->ne[2] != num_experts || !same_lists(node->src[2], ids) ||
               (stored && (here.layer != place.layer || (parts >> here.part & 1) != 0))) {
        return false;
    }
    step.part = stored ? here.part : static_cast<uint32_t>(num_products);
    step.bank = stored ? here.bank
                       : hotset_bank{node->src[0]->data, node->src[0]->nb[2],
                                     static_cast<uint32_t>(num_experts)};
    return find(node->src[1], step.sources[1]);
}

// Without products before it, it is alone, and computed as the engine would.
bool Block::add_between(Step& step) {
    const Tensor* node = step.node;
    if (node->op != ops.glu && node->op != ops.add_id) {
        return false;
    }
    if (num_products == 0) {
        return steps.empty();
    }
    const auto is_made_here = [&](size_t i) {
        return find(node->src[i], step.sources[i]) && step.sources[i].step != OUTSIDE;
    };
    return node->op == ops.add_id ? is_made_here(0) && same_lists(node->src[2], ids)
                                  : is_made_here(0) && (node->src[1] == nullptr || is_made_here(1));
}

// Where the rows of an operation come from. False if they are results of this block in another
// shape.
bool Block::find(const Tensor* tensor, Source& source) {
    for (size_t i = steps.size(); i > 0; --i) {
        const Tensor* node = steps[i - 1].node;
        if (base_of(node) != base_of(tensor)) {
            continue;
        }
        source.step = static_cast<int>(i - 1);
        source.offset =
            static_cast<const char*>(tensor->data) - static_cast<const char*>(node->data);
        return is_of_its_rows(tensor, node);
    }
    source.step = OUTSIDE;
    const auto known = std::find_if(inputs.begin(), inputs.end(),
                                    [&](const Tensor* input) { return same_lists(input, tensor); });
    source.input = known - inputs.begin();
    if (known == inputs.end()) {
        inputs.push_back(tensor);
    }
    return !overlaps_a_result(tensor);
}

bool Block::overlaps_a_result(const Tensor* tensor) const {
    return std::any_of(steps.begin(), steps.end(),
                       [&](const Step& step) { return overlap(step.node, tensor); });
}

} // namespace hotset
