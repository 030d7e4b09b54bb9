#include "products.h"

#include <algorithm>
#include <cstring>

#include "counters.h"
#include "host.h"

namespace hotset {

using namespace ggml;

namespace {

constexpr size_t NODES_PER_EXPERT = 4; // weights, rows, ids, product

const char* row_of(const Tensor* rows, int64_t slot, int64_t token) {
    // One row per token serves all its slots (gate, up), or each slot has its own (down).
    return static_cast<const char*>(rows->data) + (slot % rows->ne[1]) * rows->nb[1] +
           token * rows->nb[2];
}

char* result_of(const Tensor* product, int64_t slot, int64_t token) {
    return static_cast<char*>(product->data) + slot * product->nb[1] + token * product->nb[2];
}

// A tensor over memory that is already there.
Tensor* over(Context* context, int type, int64_t ne0, int64_t ne1, int64_t ne2, const void* data) {
    Tensor* tensor = host.ggml_new_tensor_4d(context, type, ne0, ne1, ne2, 1);
    tensor->data = const_cast<void*>(data);
    return tensor;
}

} // namespace

// Sorts the batch by expert; experts come in the order in which the router first names them.
bool Products::group(const Tensor* product) {
    const Tensor* ids = product->src[2];
    const int64_t num_experts = product->src[0]->ne[2];
    place.assign(num_experts, -1);
    num_routed = 0;
    for (int64_t token = 0; token < ids->ne[1]; ++token) {
        for (int64_t slot = 0; slot < ids->ne[0]; ++slot) {
            int32_t expert;
            std::memcpy(&expert,
                        static_cast<const char*>(ids->data) + token * ids->nb[1] +
                            slot * ids->nb[0],
                        sizeof expert);
            if (expert < 0 || expert >= num_experts) {
                say("expert %d of %lld asked for in %s", expert,
                    static_cast<long long>(num_experts), product->name);
                return false;
            }
            if (place[expert] < 0) {
                place[expert] = static_cast<int32_t>(num_routed);
                if (num_routed == routed.size()) {
                    routed.emplace_back();
                }
                routed[num_routed].expert = expert;
                routed[num_routed].pairs.clear();
                ++num_routed;
            }
            routed[place[expert]].pairs.push_back(static_cast<int32_t>(token * ids->ne[0] + slot));
        }
    }
    return true;
}

char* Products::scratch_for(std::vector<char>& bytes, size_t size) {
    if (bytes.size() < size) {
        bytes.resize(size);
    }
    return bytes.data();
}

bool Products::compute(Tensor* product) {
    const Tensor* weights = product->src[0];
    const Tensor* rows = product->src[1];
    if (!group(product)) {
        return false;
    }
    const int64_t width = weights->ne[0];
    const int64_t height = weights->ne[1];
    const size_t row_bytes = width * sizeof(float);
    const size_t result_bytes = height * sizeof(float);
    const int64_t num_slots = product->src[2]->ne[0];
    const size_t num_rows = product->src[2]->ne[1] * num_slots;
    const size_t num_nodes = NODES_PER_EXPERT * num_routed;

    const size_t arena_bytes = (num_nodes + 1) * host.ggml_tensor_overhead() +
                               host.ggml_graph_overhead_custom(num_nodes, false);
    Context* context = host.ggml_init(
        {.mem_size = arena_bytes, .mem_buffer = scratch_for(arena, arena_bytes), .no_alloc = true});
    if (context == nullptr) {
        return false;
    }
    Graph* graph = host.ggml_new_graph_custom(context, num_nodes, false);
    if (zeros.size() < num_rows) {
        zeros.resize(num_rows, 0); // every row asks for the first and only expert of its view
    }
    char* gather = scratch_for(gathered, num_rows * row_bytes);
    char* result = scratch_for(results, num_rows * result_bytes);
    for (size_t i = 0; i < num_routed; ++i) {
        const auto& [expert, pairs] = routed[i];
        const int64_t n = static_cast<int64_t>(pairs.size());
        Tensor* one = over(context, weights->type, width, height, 1,
                           static_cast<const char*>(weights->data) + expert * weights->nb[2]);
        one->nb[1] = weights->nb[1];
        one->nb[2] = one->nb[3] = weights->nb[2];
        for (int64_t row = 0; row < n; ++row) {
            const int64_t token = pairs[row] / num_slots;
            std::memcpy(gather + row * row_bytes, row_of(rows, pairs[row] % num_slots, token),
                        row_bytes);
        }
        Tensor* ids = over(context, TYPE_I32, 1, n, 1, zeros.data());
        Tensor* node =
            host.ggml_mul_mat_id(context, one, over(context, TYPE_F32, width, 1, n, gather), ids);
        node->data = result;
        host.ggml_build_forward_expand(graph, node);
        gather += n * row_bytes;
        result += n * result_bytes;
    }
    const bool done = host.ggml_backend_graph_compute(cpu, graph) == STATUS_SUCCESS;
    host.ggml_free(context);

    const char* computed = results.data();
    for (size_t i = 0; done && i < num_routed; ++i) {
        for (const int32_t pair : routed[i].pairs) {
            std::memcpy(result_of(product, pair % num_slots, pair / num_slots), computed,
                        result_bytes);
            computed += result_bytes;
        }
    }
    count(counters->num_products);
    count(counters->num_requests, num_routed);
    count(counters->num_rows, num_rows);
    return done;
}

} // namespace hotset
