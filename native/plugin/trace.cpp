#include "trace.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fcntl.h>
#include <map>
#include <mutex>
#include <string>
#include <unistd.h>
#include <vector>

#include "experts.h"
#include "host.h"

namespace hotset {

using namespace ggml;

namespace {

constexpr char MAGIC[8] = {'H', 'O', 'T', 'S', 'E', 'T', 'T', 'R'};
constexpr uint32_t VERSION = 1;

enum Kind : uint16_t { KIND_LAYER = 1, KIND_BATCH = 2 };

// The layer and the products of it that a context has come to in its present batch.
struct Position {
    uint64_t batch = 0;
    uint32_t batch_tokens = 0; // of its first layer: the last may compute fewer
    uint32_t layer = 0;
    std::vector<const void*> seen;
};

struct Trace {
    std::mutex mutex;
    std::string path;
    int file = -1;        // -1 once the trace has ended
    bool can_cut = false; // a device or a pipe cannot be
    uint64_t num_written = 0;
    std::vector<char> buffer; // whole records
    uint64_t num_batches = 0;
    std::map<const void*, Position> positions; // by stream
    std::map<ExpertLayer, uint32_t> layers;
    std::map<const void*, std::pair<std::string, uint32_t>> layer_of; // weights -> name, layer

    template <typename Number>
    void put(Number number) {
        const char* bytes = reinterpret_cast<const char*>(&number);
        buffer.insert(buffer.end(), bytes, bytes + sizeof number);
    }

    void put_head(Kind kind, size_t payload_bytes) {
        put<uint16_t>(kind);
        put<uint16_t>(0);
        put<uint32_t>(static_cast<uint32_t>(payload_bytes));
    }

    uint32_t find_layer(const Tensor* weights);
    bool begins_layer(Position& position, uint32_t layer, const Tensor* product);
    void put_batch(const Position& position, const Tensor* ids);
    void flush();
    void end(const char* reason);
};

// Lives on the heap for as long as the process: see Experts.
constinit Trace* trace = nullptr;

// The number of the layer that these weights belong to, with a record of its own when it is new.
uint32_t Trace::find_layer(const Tensor* weights) {
    const auto known = layer_of.find(weights->data);
    // Another model may have been mapped where one was before.
    if (known != layer_of.end() && known->second.first == weights->name) {
        return known->second.second;
    }
    const ExpertLayer layer = experts_layer(weights);
    const auto [found, is_new] = layers.try_emplace(layer, static_cast<uint32_t>(layers.size()));
    if (is_new) {
        put_head(KIND_LAYER, 16 + layer.name.size());
        put<uint32_t>(found->second);
        put<uint32_t>(layer.num_experts);
        put<uint64_t>(layer.expert_bytes);
        buffer.insert(buffer.end(), layer.name.begin(), layer.name.end());
    }
    layer_of[weights->data] = {weights->name, found->second};
    return found->second;
}

// False for the further products of a layer. Which of them comes first is the model's matter; a
// product that comes again, or of an earlier layer, begins another batch.
bool Trace::begins_layer(Position& position, uint32_t layer, const Tensor* product) {
    const void* weights = product->src[0]->data;
    auto& seen = position.seen;
    const bool same_layer = !seen.empty() && layer == position.layer;
    const bool again = same_layer && std::find(seen.begin(), seen.end(), weights) != seen.end();
    if (same_layer && !again) {
        seen.push_back(weights);
        return false;
    }
    if (seen.empty() || again || layer < position.layer) {
        position.batch = num_batches++;
        position.batch_tokens = static_cast<uint32_t>(product->src[2]->ne[1]);
    }
    position.layer = layer;
    seen.assign(1, weights);
    return true;
}

void Trace::put_batch(const Position& position, const Tensor* ids) {
    put_head(KIND_BATCH, 24 + sizeof(uint16_t) * ids->ne[0] * ids->ne[1]);
    put<uint64_t>(position.batch);
    put<uint32_t>(position.layer);
    put<uint32_t>(position.batch_tokens);
    put<uint32_t>(static_cast<uint32_t>(ids->ne[1]));
    put<uint32_t>(static_cast<uint32_t>(ids->ne[0]));
    for (int64_t token = 0; token < ids->ne[1]; ++token) {
        const char* row = static_cast<const char*>(ids->data) + token * ids->nb[1];
        for (int64_t slot = 0; slot < ids->ne[0]; ++slot) {
            int32_t id;
            std::memcpy(&id, row + slot * ids->nb[0], sizeof id);
            put<uint16_t>(static_cast<uint16_t>(id));
        }
    }
}

void Trace::flush() {
    // Not before: an engine that computes nothing, as when it only lists its devices, leaves what
    // is in the file.
    if (num_batches == 0) {
        return;
    }
    if (num_written == 0) {
        can_cut = file >= 0 && ftruncate(file, 0) == 0;
    }
    size_t done = 0;
    while (file >= 0 && done < buffer.size()) {
        const ssize_t n = write(file, buffer.data() + done, buffer.size() - done);
        if (n > 0) {
            done += n;
        } else if (n == 0 || errno != EINTR) {
            end(n == 0 ? "nothing can be written" : std::strerror(errno));
        }
    }
    num_written += done;
    buffer.clear();
}

// What is on disk ends with a whole record.
void Trace::end(const char* reason) {
    const bool cut = can_cut && ftruncate(file, static_cast<off_t>(num_written)) == 0;
    say("routing trace %s: %s; it ends %s", path.c_str(), reason,
        cut ? "here" : "here, with a part of a record");
    close(file);
    file = -1;
    buffer.clear();
}

} // namespace

bool trace_open() {
    const char* path = std::getenv("HOTSET_TRACE");
    if (path == nullptr || *path == '\0' || trace != nullptr) {
        return true;
    }
    const int file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0) {
        say("expert store refused: routing trace %s: %s", path, std::strerror(errno));
        return false;
    }
    trace = new Trace;
    trace->path = path;
    trace->file = file;
    trace->buffer.assign(MAGIC, MAGIC + sizeof MAGIC);
    trace->put<uint32_t>(VERSION);
    trace->put<uint32_t>(0);
    std::atexit(trace_flush); // a process that just exits frees no context
    return true;
}

void trace_batch(const void* stream, const Tensor* product) {
    if (trace == nullptr) {
        return;
    }
    const std::lock_guard lock(trace->mutex);
    if (trace->file < 0) {
        return;
    }
    const Tensor* weights = product->src[0];
    try {
        if (weights->ne[2] > UINT16_MAX + 1) {
            trace->end("a layer has more than 65536 experts");
            return;
        }
        const uint64_t num_batches = trace->num_batches;
        const uint32_t layer = trace->find_layer(weights);
        Position& position = trace->positions[stream];
        if (!trace->begins_layer(position, layer, product)) {
            return;
        }
        // The last layer has no tokens at all where the engine cuts a prompt and wants no logits.
        const Tensor* ids = product->src[2];
        if (ids->ne[1] > 0) {
            trace->put_batch(position, ids);
        }
        // Once per batch: a kill then costs no more than the last.
        if (trace->num_batches != num_batches) {
            trace->flush();
        }
    } catch (const std::exception& error) {
        trace->end(error.what());
    }
}

void trace_flush() {
    if (trace != nullptr) {
        const std::lock_guard lock(trace->mutex);
        trace->flush();
    }
}

} // namespace hotset
