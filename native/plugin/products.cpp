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

constexpr size_t TENSORS_PER_NODE = 4; // itself and up to three sources

// Rows, or results, that are copied at one time.
constexpr size_t MOST_COPY_BYTES = 8 << 20;

// The CPU backend keeps a table of 8 bytes for each row and matrix of an operation, used or not.
// Little of it is touched, but where the system hands out huge pages unasked all of it may become
// real: it must stay below this part of the bank.
constexpr size_t TABLE_ENTRY_BYTES = 8;
constexpr size_t BANK_PER_TABLE = 32;

bool has_room_for_table(const hotset_bank& bank, size_t num_rows) {
    return bank.num_places > 0 &&
           num_rows * TABLE_ENTRY_BYTES * BANK_PER_TABLE <= bank.stride_bytes;
}

int32_t place_in(const hotset_bank& bank, const ExpertRows& expert) {
    const auto distance =
        static_cast<const char*>(expert.weights) - static_cast<const char*>(bank.base);
    return bank.num_places == 1 ? 0 : static_cast<int32_t>(distance / bank.stride_bytes);
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
// wants them.
bool Products::multiply(Tensor* product, const std::vector<size_t>& which, hotset_bank bank) {
    const size_t num_pairs = product->ne[1] * product->ne[2];
    const bool done = which.size() == num_routed && has_room_for_table(bank, num_pairs)
                          ? multiply_all(product, bank)
                          : multiply_some(product, which, bank);
    if (done) {
        for (const size_t i : which) {
            count(counters->num_rows, routed[i].pairs.size());
        }
    }
    return done;
}

// The whole batch in one operation, on the rows and results where they lie: what the engine would
// do itself, with the bank for its weights.
bool Products::multiply_all(Tensor* product, hotset_bank bank) {
    const Tensor* rows = product->src[1];
    const Tensor* ids = product->src[2];
    places.resize(product->ne[1] * product->ne[2]);
    for (size_t i = 0; i < num_routed; ++i) {
        for (const int32_t pair : routed[i].pairs) {
            places[pair] = place_in(bank, routed[i]);
        }
    }
    return run(1, [&](Context* context, Graph* graph) {
        Tensor* in = over(context, TYPE_F32, rows->ne[0], rows->ne[1], rows->ne[2], rows->data);
        std::copy_n(rows->nb, 4, in->nb);
        Tensor* node =
            host.ggml_mul_mat_id(context, over_bank(context, product->src[0], bank), in,
                                 over(context, TYPE_I32, ids->ne[0], ids->ne[1], 1, places.data()));
        node->data = product->data;
        std::copy_n(product->nb, 4, node->nb);
        host.ggml_build_forward_expand(graph, node);
    });
}

// A part of the batch: its rows are gathered, multiplied and put back, a group of experts at a
// time.
bool Products::multiply_some(Tensor* product, const std::vector<size_t>& which, hotset_bank bank) {
    const Tensor* rows = product->src[1];
    const size_t row_bytes = rows->ne[0] * sizeof(float);
    const size_t result_bytes = product->ne[0] * sizeof(float);
    // One row per token serves all its slots (gate, up), or each slot has its own (down).
    const int64_t pairs_per_row = rows->ne[1] == 1 ? product->ne[1] : 1;
    form_groups(which, bank, MOST_COPY_BYTES / std::max(row_bytes, result_bytes), pairs_per_row);
    const size_t most_rows =
        std::max_element(groups.begin(), groups.end(), [](const Group& a, const Group& b) {
            return a.num_rows < b.num_rows;
        })->num_rows;
    char* in = at_least(rows_in, most_rows * row_bytes);
    char* out = at_least(rows_out, most_rows * result_bytes);

    return run(3 * groups.size(), [&](Context* context, Graph* graph) {
        // All rows, and all results, as one list.
        Tensor* all_in =
            over(context, TYPE_F32, rows->ne[0], rows->ne[1] * rows->ne[2], 1, rows->data);
        all_in->nb[1] = rows->nb[rows->ne[1] == 1 ? 2 : 1];
        Tensor* all_out = over(context, TYPE_F32, product->ne[0], product->ne[1] * product->ne[2],
                               1, product->data);
        all_out->nb[1] = product->nb[1];
        for (const Group& group : groups) {
            const auto n = static_cast<int64_t>(group.num_rows);
            const auto add = [&](Tensor* node, const void* data) {
                node->data = const_cast<void*>(data);
                host.ggml_build_forward_expand(graph, node);
            };
            add(host.ggml_get_rows(
                    context, all_in,
                    over(context, TYPE_I32, n, 1, 1, sources.data() + group.first_row)),
                in);
            add(host.ggml_mul_mat_id(
                    context, over_bank(context, product->src[0], group.bank),
                    over(context, TYPE_F32, rows->ne[0], 1, n, in),
                    over(context, TYPE_I32, 1, n, 1, places.data() + group.first_row)),
                out);
            add(host.ggml_set_rows(
                    context, all_out, over(context, TYPE_F32, product->ne[0], n, 1, out),
                    over(context, TYPE_I64, n, 1, 1, targets.data() + group.first_row)),
                product->data);
        }
    });
}

// Experts of a bank share an operation, as long as their rows stay few enough to be copied.
void Products::form_groups(const std::vector<size_t>& which, hotset_bank bank, size_t most_rows,
                           int64_t pairs_per_row) {
    groups.clear();
    sources.clear();
    targets.clear();
    places.clear();
    for (const size_t i : which) {
        const std::vector<int32_t>& pairs = routed[i].pairs;
        const size_t joined = groups.empty() ? 0 : groups.back().num_rows + pairs.size();
        if (joined == 0 || joined > most_rows || !has_room_for_table(bank, joined)) {
            const bool is_banked = has_room_for_table(bank, pairs.size());
            groups.push_back({.bank = is_banked ? bank : hotset_bank{routed[i].weights, 0, 1},
                              .first_row = targets.size(),
                              .num_rows = 0});
        }
        Group& group = groups.back();
        group.num_rows += pairs.size();
        for (const int32_t pair : pairs) {
            sources.push_back(static_cast<int32_t>(pair / pairs_per_row));
            targets.push_back(pair);
            places.push_back(place_in(group.bank, routed[i]));
        }
    }
}

// Computes the graph of at most `num_nodes` nodes that `build` makes.
template <class Build>
bool Products::run(size_t num_nodes, const Build& build) {
    const size_t memory_bytes =
        (1 + TENSORS_PER_NODE * num_nodes) * host.ggml_tensor_overhead() +
        host.ggml_graph_overhead_custom(TENSORS_PER_NODE * num_nodes, false);
    Context* context = host.ggml_init({.mem_size = memory_bytes,
                                       .mem_buffer = at_least(graph_memory, memory_bytes),
                                       .no_alloc = true});
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
