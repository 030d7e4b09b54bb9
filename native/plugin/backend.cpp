#include <cstring>
#include <exception>

#include "experts.h"
#include "host.h"
#include "plugin.h"
#include "products.h"
#include "trace.h"

namespace hotset {

namespace {

using namespace ggml;

// What stands behind one of the host's backend handles.
struct Stream {
    explicit Stream(Backend* cpu) : cpu(cpu), products(cpu) {}

    Backend handle{};
    Backend* cpu; // the engine's own CPU backend, owned
    Products products;
};

// Any fixed number that no other backend has.
constexpr uint8_t GUID[16] = {0x68, 0x6f, 0x74, 0x73, 0x65, 0x74, 0x2d, 0x65,
                              0x78, 0x70, 0x65, 0x72, 0x74, 0x73, 0x00, 0x01};

Stream* stream_of(Backend* backend) { return static_cast<Stream*>(backend->context); }

const char* get_name(Backend*) { return "HOTSET"; }

void free_stream(Backend* backend) {
    Stream* stream = stream_of(backend);
    host.ggml_backend_free(stream->cpu);
    delete stream;
    trace_flush();
}

Status graph_compute(Backend* backend, Graph* graph) try {
    return stream_of(backend)->products.compute(graph) ? STATUS_SUCCESS : STATUS_FAILED;
} catch (const std::exception& error) {
    say("expert products: %s", error.what()); // no exception may reach the host's C code
    return STATUS_FAILED;
}

// What the engine tells its own CPU backend, it tells us too; it goes on to ours.
void* cpu_proc_address(Backend* cpu, const char* name) {
    Registration* of_cpu = host.ggml_backend_dev_backend_reg(host.ggml_backend_get_device(cpu));
    return host.ggml_backend_reg_get_proc_address(of_cpu, name);
}

void set_threads(Backend* backend, int num_threads) {
    Backend* cpu = stream_of(backend)->cpu;
    if (auto set =
            reinterpret_cast<SetThreads>(cpu_proc_address(cpu, "ggml_backend_set_n_threads"))) {
        set(cpu, num_threads);
    }
}

void set_abort_callback(Backend* backend, AbortCallback callback, void* data) {
    Backend* cpu = stream_of(backend)->cpu;
    if (auto set = reinterpret_cast<SetAbortCallback>(
            cpu_proc_address(cpu, "ggml_backend_set_abort_callback"))) {
        set(cpu, callback, data);
    }
}

} // namespace

Backend* backend_new(Device* device, const char*) try {
    // The first context is made after the weights were mapped, and before any is computed.
    if (!experts_open()) {
        return nullptr;
    }
    Backend* cpu = host.ggml_backend_dev_init(host.ggml_backend_dev_by_type(DEVICE_CPU), nullptr);
    if (cpu == nullptr) {
        say("the engine's CPU backend does not start");
        return nullptr;
    }
    auto* stream = new Stream(cpu);
    stream->handle.guid = &GUID;
    stream->handle.table.get_name = get_name;
    stream->handle.table.free = free_stream;
    stream->handle.table.graph_compute = graph_compute;
    stream->handle.device = device;
    stream->handle.context = stream;
    return &stream->handle;
} catch (const std::exception& error) {
    say("expert store: %s", error.what());
    return nullptr;
}

void* backend_proc_address(Registration*, const char* name) {
    if (std::strcmp(name, "ggml_backend_set_n_threads") == 0) {
        return reinterpret_cast<void*>(set_threads);
    }
    if (std::strcmp(name, "ggml_backend_set_abort_callback") == 0) {
        return reinterpret_cast<void*>(set_abort_callback);
    }
    return nullptr;
}

} // namespace hotset
