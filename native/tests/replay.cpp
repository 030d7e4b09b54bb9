// Replays a routing trace against the store, with reads that read nothing, and prints what the
// store has counted: requests, hits, evictions, reads. The simulator must come to the same.
//
//     replay TRACE POLICY RAM_BYTES

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "store.h"

namespace {

[[noreturn]] void fail(const std::string& what) {
    std::fprintf(stderr, "replay: %s\n", what.c_str());
    std::exit(1);
}

// The file's content and how far it has been read. Layout: docs/trace.md.
struct Trace {
    std::vector<char> bytes;
    size_t at = 16;

    template <typename Number>
    Number take() {
        Number number;
        if (at + sizeof number > bytes.size()) {
            fail("the trace is cut off");
        }
        std::memcpy(&number, bytes.data() + at, sizeof number);
        at += sizeof number;
        return number;
    }
};

struct Batch {
    int layer;
    uint32_t num_tokens;
    std::vector<int32_t> experts; // distinct, in the order in which the plugin asks for them
};

Batch take_batch(Trace& trace) {
    trace.take<uint64_t>();
    Batch batch{.layer = static_cast<int>(trace.take<uint32_t>()), .num_tokens = 0, .experts = {}};
    trace.take<uint32_t>();
    batch.num_tokens = trace.take<uint32_t>();
    const size_t num_ids = size_t{batch.num_tokens} * trace.take<uint32_t>();
    for (size_t i = 0; i < num_ids; ++i) {
        const int32_t expert = trace.take<uint16_t>();
        if (std::find(batch.experts.begin(), batch.experts.end(), expert) == batch.experts.end()) {
            batch.experts.push_back(expert);
        }
    }
    if (batch.num_tokens > 1) {
        std::sort(batch.experts.begin(), batch.experts.end());
    }
    return batch;
}

ssize_t read_nothing(void*, int, void*, size_t size, off_t) { return static_cast<ssize_t>(size); }

// As Products::compute_stored asks for a layer of one matrix.
void ask(hotset_store* store, const Batch& batch) {
    const auto acquire = [&](size_t first, size_t n, decltype(hotset_store_acquire)* how) {
        n = std::min(n, batch.experts.size() - first);
        return how(store, batch.layer, batch.experts.data() + first, n, HOTSET_ALL_PARTS,
                   batch.num_tokens);
    };
    const uint32_t capacity = hotset_store_capacity(store, batch.layer);
    const bool prompt = batch.num_tokens > HOTSET_MOST_DECODED_TOKENS;
    const size_t most = std::max(1U, prompt ? capacity / 2 : capacity);
    const size_t size = batch.experts.size() <= most ? most : std::max<size_t>(1, most / 2);
    hotset_lease* next = nullptr;
    for (size_t first = 0; first < batch.experts.size(); first += size) {
        hotset_lease* lease = next != nullptr ? next : acquire(first, size, hotset_store_acquire);
        if (lease == nullptr) {
            fail(hotset_store_error(store));
        }
        next = first + size < batch.experts.size()
                   ? acquire(first + size, size, hotset_store_try_acquire)
                   : nullptr;
        for (size_t i = 0; i < std::min(size, batch.experts.size() - first); ++i) {
            hotset_store_wait(lease, i, 0);
        }
        hotset_store_release(lease);
    }
}

} // namespace

int main(int argc, char** argv) {
    if (argc != 4) {
        fail("TRACE POLICY RAM_BYTES");
    }
    std::ifstream file(argv[1], std::ios::binary);
    Trace trace{.bytes = {std::istreambuf_iterator<char>(file), {}}};
    hotset_store* store = hotset_store_new();
    std::vector<Batch> batches;
    while (trace.at < trace.bytes.size()) {
        const auto kind = trace.take<uint16_t>();
        trace.take<uint16_t>();
        const size_t end = trace.take<uint32_t>() + trace.at;
        if (kind == 1) {
            trace.take<uint32_t>();
            const auto num_experts = trace.take<uint32_t>();
            const hotset_part part{argv[1], 0, trace.take<uint64_t>()};
            hotset_store_add_layer(store, &part, 1, num_experts);
        } else if (kind == 2) {
            batches.push_back(take_batch(trace));
        }
        trace.at = end;
    }
    const hotset_config config{.ram_bytes = std::strtoull(argv[3], nullptr, 10),
                               .num_readers = 1,
                               .read = read_nothing,
                               .read_context = nullptr,
                               .policy = argv[2]};
    if (hotset_store_open(store, &config) != 0) {
        fail(hotset_store_error(store));
    }
    for (const Batch& batch : batches) {
        ask(store, batch);
    }
    hotset_stats stats;
    hotset_store_stats(store, &stats);
    std::printf("%llu %llu %llu %llu\n", static_cast<unsigned long long>(stats.num_requests),
                static_cast<unsigned long long>(stats.num_hits),
                static_cast<unsigned long long>(stats.num_evictions),
                static_cast<unsigned long long>(stats.num_reads));
    hotset_store_free(store);
    return 0;
}
