#include "products.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "counters.h"
#include "host.h"
#include "trace.h"

namespace hotset {

using namespace ggml;

namespace {

constexpr size_t NODES_PER_PRODUCT = 4; // weights, rows, ids, product

// The CPU backend keeps a table of 8 bytes per row and matrix of the operation, used or not; a big
// batch over a big bank is done expert by expert rather than with more than 16 MiB of it.
constexpr size_t MOST_TABLE_ENTRIES = 2 << 20;

const char* row_of(const Tensor* rows, int64_t slot, int64_t token) {
    // One row per token serves all its slots (gate, up), or each slot has its own (down).
    return static_cast<const char*>(rows->data) + (slot % rows->ne[1]) * rows->nb[1] +
           token * rows->nb[2];
}

char* result_of(const Tensor* product, int64_t slot, int64_t token) {
    return static_cast<char*>(product->data) + slot * product->nb[1] + token * product->nb[2];
}

int32_t id_of(const Tensor* ids, int64_t slot, int64_t token) {
    int32_t id;
    std::memcpy(&id, static_cast<const char*>(ids->data) + token * ids->nb[1] + slot * ids->nb[0],
                sizeof id);
    return id;
}

// A tensor over memory that is already there.
Tensor* over(Context* context, int type, int64_t ne0, int64_t ne1, int64_t ne2, const void* data) {
    Tensor* tensor = host.ggml_new_tensor_4d(context, type, ne0, ne1, ne2, 1);
    tensor->data = const_cast<void*>(data);
    return tensor;
}

bool tell_error(const Tensor* product) {
    say("%s: %s", product->name, hotset_store_error(experts_store()));
    return false;
}

char* at_least(std::vector<char>& bytes, size_t size) {
    if (bytes.size() < size) {
        bytes.resize(size);
    }
    return bytes.data();
}

} // namespace

bool Products::compute(Tensor* product) {
    Place place;
    if (!group(product)) {
        return false;
    }
    trace_batch(this, product);
    const bool done = experts_find(product->src[0], place) ? compute_stored(product, place)
                                                           : compute_mapped(product);
    if (!done) {
        let_go();
    }
    count(counters->num_products);
    return done;
}

// Sorts the batch by expert; the experts of several tokens come in the order of the file, so that
// they are read in it.
bool Products::group(const Tensor* product) {
    const Tensor* ids = product->src[2];
    const int64_t num_experts = product->src[0]->ne[2];
    index_of.assign(num_experts, -1);
    num_routed = 0;
    for (int64_t token = 0; token < ids->ne[1]; ++token) {
        for (int64_t slot = 0; slot < ids->ne[0]; ++slot) {
            const int32_t expert = id_of(ids, slot, token);
            if (expert < 0 || expert >= num_experts) {
                say("%s asks for expert %d of %lld", product->name, expert,
                    static_cast<long long>(num_experts));
                return false;
            }
            if (index_of[expert] < 0) {
                index_of[expert] = static_cast<int32_t>(num_routed);
                if (num_routed == routed.size()) {
                    routed.emplace_back();
                }
                routed[num_routed].expert = expert;
                routed[num_routed].pairs.clear();
                ++num_routed;
            }
            routed[index_of[expert]].pairs.push_back(
                static_cast<int32_t>(token * ids->ne[0] + slot));
        }
    }
    if (ids->ne[1] > 1) {
        std::sort(routed.begin(), routed.begin() + static_cast<std::ptrdiff_t>(num_routed),
                  [](const ExpertRows& a, const ExpertRows& b) { return a.expert < b.expert; });
    }
    return true;
}

// Without a store: the weights are used where the engine has mapped them.
bool Products::compute_mapped(Tensor* product) {
    const Tensor* weights = product->src[0];
    arrived.clear();
    for (size_t i = 0; i < num_routed; ++i) {
        routed[i].weights =
            static_cast<const char*>(weights->data) + routed[i].expert * weights->nb[2];
        arrived.push_back(i);
    }
    return multiply(product, arrived,
                    {weights->data, weights->nb[2], static_cast<uint32_t>(weights->ne[2])});
}

bool Products::compute_stored(Tensor* product, const Place& place) {
    const auto num_tokens = static_cast<uint32_t>(product->src[2]->ne[1]);
    const bool prompt = num_tokens > HOTSET_MOST_DECODED_TOKENS;
    // The other half of memory stays as decoding left it.
    const size_t most = std::max(1U, prompt ? place.capacity / 2 : place.capacity);
    return num_routed <= most
               ? compute_whole(product, place, num_tokens)
               : compute_in_turns(product, place, num_tokens, std::max<size_t>(1, most / 2));
}

// All experts of the batch at once. The first product of a layer names the experts of all, so all
// their matrices are asked for at once, and held until the last product.
bool Products::compute_whole(Tensor* product, const Place& place, uint32_t num_tokens) {
    const bool same =
        lease != nullptr && leased_layer == place.layer && leased.size() == num_routed &&
        std::equal(leased.begin(), leased.end(), routed.begin(),
                   [](int32_t expert, const ExpertRows& rows) { return expert == rows.expert; });
    if (!same) {
        let_go();
        name_experts(0, num_routed);
        leased_layer = place.layer;
        parts_to_come = (1U << place.num_parts) - 1;
        lease = hotset_store_acquire(experts_store(), place.layer, leased.data(), leased.size(),
                                     parts_to_come, num_tokens);
    }
    if (lease == nullptr) {
        return tell_error(product);
    }
    if (!multiply_arriving(product, place, 0, num_routed)) {
        return false;
    }
    parts_to_come &= ~(1U << place.part);
    if (parts_to_come == 0) {
        let_go();
    }
    return true;
}

// More experts than memory should hold: `size` at a time, and of them the matrix at hand only,
// since the others would be gone again before their turn. The next are read meanwhile.
bool Products::compute_in_turns(Tensor* product, const Place& place, uint32_t num_tokens,
                                size_t size) {
    let_go();
    const auto ask = [&](size_t first, decltype(hotset_store_acquire)* acquire) {
        name_experts(first, std::min(first + size, num_routed));
        return acquire(experts_store(), place.layer, leased.data(), leased.size(), 1U << place.part,
                       num_tokens);
    };
    for (size_t first = 0; first < num_routed; first += size) {
        if (lease == nullptr) {
            lease = ask(first, hotset_store_acquire);
            leased_layer = -1;
        }
        if (lease == nullptr) {
            return tell_error(product);
        }
        const size_t next = first + size;
        if (next < num_routed) {
            next_lease = ask(next, hotset_store_try_acquire);
        }
        if (!multiply_arriving(product, place, first, std::min(size, num_routed - first))) {
            return false;
        }
        hotset_store_release(lease);
        lease = std::exchange(next_lease, nullptr);
    }
    return true;
}

void Products::name_experts(size_t begin, size_t end) {
    leased.clear();
    for (size_t i = begin; i < end; ++i) {
        leased.push_back(routed[i].expert);
    }
}

// Multiplies the experts routed[first, first + n), which are held, as they arrive; those already in
// memory first.
bool Products::multiply_arriving(Tensor* product, const Place& place, size_t first, size_t n) {
    waiting.resize(n);
    std::iota(waiting.begin(), waiting.end(), 0);
    while (!waiting.empty()) {
        arrived.clear();
        std::erase_if(waiting, [&](size_t i) {
            const bool ready = hotset_store_ready(lease, i, place.part) != 0;
            if (ready) {
                arrived.push_back(i);
            }
            return ready;
        });
        if (arrived.empty()) {
            arrived.push_back(waiting.front());
            waiting.erase(waiting.begin());
        }
        for (size_t& i : arrived) {
            const void* weights = hotset_store_wait(lease, i, place.part);
            if (weights == nullptr) {
                return tell_error(product);
            }
            i += first; // from here on an index in `routed`
            routed[i].weights = weights;
        }
        if (!multiply(product, arrived, place.bank)) {
            return false;
        }
    }
    return true;
}

void Products::let_go() {
    for (hotset_lease** held : {&lease, &next_lease}) {
        if (*held != nullptr) {
            hotset_store_release(*held);
            *held = nullptr;
        }
    }
}

// Multiplies the rows of routed[i], for each i of `which`, and puts the results where the product
// wants them. With a bank that is one operation; without, one per expert.
bool Products::multiply(Tensor* product, const std::vector<size_t>& which, hotset_bank bank) {
    const Tensor* shape = product->src[0];
    const Tensor* rows = product->src[1];
    const int64_t num_slots = product->src[2]->ne[0];
    const size_t row_bytes = shape->ne[0] * sizeof(float);
    const size_t result_bytes = shape->ne[1] * sizeof(float);
    size_t num_rows = 0;
    for (const size_t i : which) {
        num_rows += routed[i].pairs.size();
    }
    const bool banked = bank.num_places > 0 && bank.num_places * num_rows <= MOST_TABLE_ENTRIES;
    char* row_in = at_least(rows_in, num_rows * row_bytes);
    char* row_out = at_least(rows_out, num_rows * result_bytes);
    places.clear();
    for (const size_t i : which) {
        const auto distance =
            static_cast<const char*>(routed[i].weights) - static_cast<const char*>(bank.base);
        const auto at = banked ? static_cast<int32_t>(distance / bank.stride_bytes) : 0;
        for (const int32_t pair : routed[i].pairs) {
            std::memcpy(row_in, row_of(rows, pair % num_slots, pair / num_slots), row_bytes);
            row_in += row_bytes;
            places.push_back(at);
        }
    }

    const size_t num_nodes = NODES_PER_PRODUCT * (banked ? 1 : which.size());
    const size_t memory_bytes = (num_nodes + 1) * host.ggml_tensor_overhead() +
                                host.ggml_graph_overhead_custom(num_nodes, false);
    Context* context = host.ggml_init({.mem_size = memory_bytes,
                                       .mem_buffer = at_least(graph_memory, memory_bytes),
                                       .no_alloc = true});
    if (context == nullptr) {
        return false;
    }
    Graph* graph = host.ggml_new_graph_custom(context, num_nodes, false);
    // The next `n` rows, from `first`, times `num_matrices` that lie `stride_bytes` apart.
    const auto add = [&](size_t first, size_t n, const void* matrices, size_t stride_bytes,
                         uint32_t num_matrices) {
        Tensor* weights =
            over(context, shape->type, shape->ne[0], shape->ne[1], num_matrices, matrices);
        weights->nb[2] = stride_bytes;
        weights->nb[3] = stride_bytes * num_matrices;
        Tensor* in = over(context, TYPE_F32, shape->ne[0], 1, static_cast<int64_t>(n),
                          rows_in.data() + first * row_bytes);
        Tensor* ids = over(context, TYPE_I32, 1, static_cast<int64_t>(n), 1, places.data() + first);
        Tensor* node = host.ggml_mul_mat_id(context, weights, in, ids);
        node->data = row_out + first * result_bytes;
        host.ggml_build_forward_expand(graph, node);
    };
    if (banked) {
        add(0, num_rows, bank.base, bank.stride_bytes, bank.num_places);
    } else {
        size_t first = 0;
        for (const size_t i : which) {
            add(first, routed[i].pairs.size(), routed[i].weights, shape->nb[2], 1);
            first += routed[i].pairs.size();
        }
    }
    const bool done = host.ggml_backend_graph_compute(cpu, graph) == STATUS_SUCCESS;
    host.ggml_free(context);
    if (!done) {
        return false;
    }
    for (const size_t i : which) {
        for (const int32_t pair : routed[i].pairs) {
            std::memcpy(result_of(product, pair % num_slots, pair / num_slots), row_out,
                        result_bytes);
            row_out += result_bytes;
        }
    }
    count(counters->num_rows, num_rows);
    return true;
}

} // namespace hotset
