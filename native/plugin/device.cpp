#include <cstring>

#include "block.h"
#include "counters.h"
#include "experts.h"
#include "handshake.h"
#include "host.h"
#include "plugin.h"
#include "trace.h"

namespace hotset {

namespace {

using namespace ggml;

const char* get_name(Device*) { return "HOTSET"; }

const char* get_description(Device*) { return "hotset expert store"; }

// Zeros mean "no memory to report": the store's budget is planned outside of the engine.
void get_memory(Device*, size_t* free, size_t* total) { *free = *total = 0; }

int get_type(Device*) { return DEVICE_ACCEL; }

void get_props(Device* device, DeviceProps* props) {
    props->name = get_name(device);
    props->description = get_description(device);
    props->memory_free = 0;
    props->memory_total = 0;
    props->type = DEVICE_ACCEL;
    props->device_id = nullptr;
    props->async = false;
    props->host_buffer = false;
    props->buffer_from_host_ptr = true;
    props->events = false;
    props->mmap_support = true;
}

BufferType* get_buffer_type(Device*) { return &buffer_type; }

// Do all rows lie at one distance?
bool is_one_list(const Tensor* rows) {
    return rows->ne[1] == 1 || rows->nb[2] == rows->ne[1] * rows->nb[1];
}

// Expert products whose weights lie in our buffer type, and what lies between them, so that a layer
// is one piece of work; nothing else: whatever is accepted beyond that draws embeddings and norms
// here too. The loader asks with a made-up product of 512 tokens whose weights lie in an empty
// buffer of this type; a no to that question would send the experts elsewhere, so size is no
// criterion.
bool supports_op(Device*, const Tensor* op) {
    if (op->op != ops.mul_mat_id) {
        return follows_product(op);
    }
    const Tensor* weights = op->src[0];
    const Tensor* rows = op->src[1];
    const Tensor* ids = op->src[2];
    if (weights->buffer == nullptr ||
        host.ggml_backend_buffer_get_type(weights->buffer) != &buffer_type) {
        return false;
    }
    // One "expert" means another kind of tensor, for which the loader makes up the same product:
    // the scales of some families.
    return weights->ne[2] > 1 && op->type == TYPE_F32 && rows->type == TYPE_F32 &&
           ids->type == TYPE_I32 && weights->nb[0] == host.ggml_type_size(weights->type) &&
           weights->nb[0] <= weights->nb[1] && weights->nb[1] <= weights->nb[2] &&
           rows->nb[0] == sizeof(float) && op->nb[0] == sizeof(float) && is_one_list(rows) &&
           is_one_list(op);
}

// Rows, ids and results are read and written where they lie, in any memory of the host.
bool supports_buft(Device*, BufferType* type) { return host.ggml_backend_buft_is_host(type); }

const char* get_registration_name(Registration*) { return "HOTSET"; }

size_t get_device_count(Registration*) { return 1; }

Device* get_device(Registration*, size_t) { return &device; }

} // namespace

constinit Device device{.table = {.get_name = get_name,
                                  .get_description = get_description,
                                  .get_memory = get_memory,
                                  .get_type = get_type,
                                  .get_props = get_props,
                                  .init_backend = backend_new,
                                  .get_buffer_type = get_buffer_type,
                                  .get_host_buffer_type = nullptr,
                                  .buffer_from_host_ptr = buffer_from_mapping,
                                  .supports_op = supports_op,
                                  .supports_buft = supports_buft,
                                  .offload_op = nullptr,
                                  .event_new = nullptr,
                                  .event_free = nullptr,
                                  .event_synchronize = nullptr},
                        .registration = &registration,
                        .context = nullptr};

constinit Registration registration{.api_version = HOTSET_GGML_API,
                                    .table = {.get_name = get_registration_name,
                                              .get_device_count = get_device_count,
                                              .get_device = get_device,
                                              .get_proc_address = backend_proc_address},
                                    .context = nullptr};

} // namespace hotset

// The entry point that ggml looks for. Null, after one line that says why, for a host that does
// not fit; the engine then runs without the store.
extern "C" [[gnu::visibility("default")]] hotset::ggml::Registration* ggml_backend_init() {
    using namespace hotset;
    if (const char* missing = host_resolve(__builtin_return_address(0))) {
        say("expert store refused: this engine does not offer %s", missing);
        return nullptr;
    }
    if (const char* misfit = handshake()) {
        say("expert store refused: this engine differs from ggml backend interface %d in: %s",
            HOTSET_GGML_API, misfit);
        return nullptr;
    }
    if (host.ggml_backend_dev_by_type(ggml::DEVICE_CPU) == nullptr) {
        say("expert store refused: this engine has no CPU backend");
        return nullptr;
    }
    return experts_configure() && counters_open() && trace_open() ? &registration : nullptr;
}
