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

int32_t id_of(const Tensor* ids, int64_t slot, int64_t token) {
    int32_t id;
    std::memcpy(&id, static_cast<const char*>(ids->data) + token * ids->nb[1] + slot * ids->nb[0],
                sizeof id);
    return id;
}

} // namespace

bool Products::compute(Graph* graph) {
    const int num_nodes = host.ggml_graph_n_nodes(graph);
    for (int i = 0; i < num_nodes;) {
        const int next = block.take(graph, i);
        if (block.steps.empty() && next < num_nodes) {
            const Tensor* node = host.ggml_graph_node(graph, next);
            say("cannot compute %s for %s", host.ggml_op_desc(node), node->name);
            return false;
        }
        if (!block.steps.empty() && !compute_block()) {
            let_go();
            return false;
        }
        i = next;
    }
    return true;
}

bool Products::compute_block() {
    if (block.num_products == 0) {
        return multiplier.compute_alone(block);
    }
    if (!group()) {
        return false;
    }
    for (const Step& step : block.steps) {
        if (step.is_product) {
            trace_batch(this, step.node);
        }
    }
    const bool done = block.is_stored ? compute_stored() : compute_mapped();
    count(counters->num_products, block.num_products);
    return done;
}

// Sorts the batch by expert; the experts of several tokens come in the order of the file, so that
// they are read in it.
bool Products::group() {
    const Tensor* ids = block.ids;
    index_of.assign(block.num_experts, -1);
    num_routed = 0;
    for (int64_t token = 0; token < ids->ne[1]; ++token) {
        for (int64_t slot = 0; slot < ids->ne[0]; ++slot) {
            const int32_t expert = id_of(ids, slot, token);
            if (expert < 0 || expert >= block.num_experts) {
                say("%s asks for expert %d of %lld", block.steps.front().node->name, expert,
                    static_cast<long long>(block.num_experts));
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
bool Products::compute_mapped() {
    arrived.resize(num_routed);
    std::iota(arrived.begin(), arrived.end(), 0);
    for (const Step& step : block.steps) {
        for (size_t i = 0; step.is_product && i < num_routed; ++i) {
            routed[i].weights[step.part] = static_cast<const char*>(step.bank.base) +
                                           routed[i].expert * step.bank.stride_bytes;
        }
    }
    return multiply();
}

bool Products::compute_stored() {
    const auto num_tokens = static_cast<uint32_t>(block.ids->ne[1]);
    const bool prompt = num_tokens > HOTSET_MOST_DECODED_TOKENS;
    // The other half of memory stays as decoding left it.
    const size_t most = std::max(1U, prompt ? block.place.capacity / 2 : block.place.capacity);
    return num_routed <= most ? compute_whole(num_tokens)
                              : compute_in_turns(num_tokens, std::max<size_t>(1, most / 2));
}

// All experts of the batch at once. The first products of a layer name the experts of all, so all
// their matrices are asked for at once, and held until the last product.
bool Products::compute_whole(uint32_t num_tokens) {
    const bool same =
        lease != nullptr && leased_layer == block.place.layer && leased.size() == num_routed &&
        std::equal(leased.begin(), leased.end(), routed.begin(),
                   [](int32_t expert, const ExpertRows& rows) { return expert == rows.expert; });
    if (!same) {
        let_go();
        name_experts(0, num_routed);
        leased_layer = block.place.layer;
        parts_to_come = (1U << block.place.num_parts) - 1;
        lease = hotset_store_acquire(experts_store(), leased_layer, leased.data(), leased.size(),
                                     parts_to_come, num_tokens);
    }
    if (!multiply_arriving(0, num_routed)) {
        return false;
    }
    parts_to_come &= ~block.parts;
    if (parts_to_come == 0) {
        let_go();
    }
    return true;
}

// More experts than memory should hold: `size` at a time, and of them the matrices at hand only,
// since others would be gone again before their turn. The next are read meanwhile.
bool Products::compute_in_turns(uint32_t num_tokens, size_t size) {
    let_go();
    const auto ask = [&](size_t first, decltype(hotset_store_acquire)* acquire) {
        name_experts(first, std::min(first + size, num_routed));
        return acquire(experts_store(), block.place.layer, leased.data(), leased.size(),
                       block.parts, num_tokens);
    };
    for (size_t first = 0; first < num_routed; first += size) {
        if (lease == nullptr) {
            lease = ask(first, hotset_store_acquire);
            leased_layer = -1;
        }
        const size_t next = first + size;
        if (lease != nullptr && next < num_routed) {
            next_lease = ask(next, hotset_store_try_acquire);
        }
        if (!multiply_arriving(first, std::min(size, num_routed - first))) {
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

// Computes the experts routed[first, first + n), which are held, as they arrive; those already in
// memory first.
bool Products::multiply_arriving(size_t first, size_t n) {
    waiting.resize(n);
    std::iota(waiting.begin(), waiting.end(), 0);
    bool fine = lease != nullptr;
    while (fine && !waiting.empty()) {
        arrived.clear();
        std::erase_if(waiting, [&](size_t i) {
            const bool ready = is_ready(i);
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
            fine = fine && fetch(i, first);
            i += first; // from here on an index in `routed`
        }
        if (fine && !multiply()) {
            return false;
        }
    }
    if (!fine) {
        say("%s: %s", block.steps.front().node->name, hotset_store_error(experts_store()));
    }
    return fine;
}

// Are all matrices that the block needs of the lease's expert i there?
bool Products::is_ready(size_t i) const {
    return std::all_of(block.steps.begin(), block.steps.end(), [&](const Step& step) {
        return !step.is_product || hotset_store_ready(lease, i, step.part) != 0;
    });
}

// Waits for the matrices of the lease's expert i. False if one cannot be read.
bool Products::fetch(size_t i, size_t first) {
    return std::all_of(block.steps.begin(), block.steps.end(), [&](const Step& step) {
        if (!step.is_product) {
            return true;
        }
        const void* weights = hotset_store_wait(lease, i, step.part);
        routed[first + i].weights[step.part] = weights;
        return weights != nullptr;
    });
}

bool Products::multiply() {
    if (!multiplier.compute(block, {routed.data(), num_routed}, arrived)) {
        return false;
    }
    for (const size_t i : arrived) {
        count(counters->num_rows, routed[i].pairs.size() * block.num_products);
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

} // namespace hotset
