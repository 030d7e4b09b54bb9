#include <cstdlib>
#include <cstring>
#include <exception>

#include "counters.h"
#include "experts.h"
#include "host.h"
#include "plugin.h"

namespace hotset {

namespace {

using namespace ggml;

constexpr size_t ALIGNMENT_BYTES = 64;

char* at(const Tensor* tensor, size_t offset) { return static_cast<char*>(tensor->data) + offset; }

void free_memory(Buffer* buffer) { std::free(buffer->context); }

void* get_base(Buffer* buffer) { return buffer->context; }

void memset_tensor(Buffer*, Tensor* tensor, uint8_t value, size_t offset, size_t size) {
    std::memset(at(tensor, offset), value, size);
}

void set_tensor(Buffer*, Tensor* tensor, const void* data, size_t offset, size_t size) {
    std::memcpy(at(tensor, offset), data, size);
}

void get_tensor(Buffer*, const Tensor* tensor, void* data, size_t offset, size_t size) {
    std::memcpy(data, at(tensor, offset), size);
}

void clear(Buffer* buffer, uint8_t value) {
    std::memset(buffer->context, value, host.ggml_backend_buffer_get_size(buffer));
}

// Called once for every tensor that the host places in a mapped range.
Status init_matrix(Buffer* buffer, Tensor* weights) try {
    experts_add(buffer, weights);
    count(counters->num_matrices);
    return STATUS_SUCCESS;
} catch (const std::exception& error) {
    say("expert store: %s: %s", weights->name, error.what());
    return STATUS_FAILED;
}

constexpr BufferTable table(bool is_mapped) {
    return {.free_buffer = is_mapped ? experts_remove : free_memory,
            .get_base = get_base,
            .init_tensor = is_mapped ? init_matrix : nullptr,
            .memset_tensor = memset_tensor,
            .set_tensor = set_tensor,
            .get_tensor = get_tensor,
            .set_tensor_2d = nullptr,
            .get_tensor_2d = nullptr,
            .copy_tensor = nullptr,
            .clear = clear,
            .reset = nullptr};
}

const char* get_name(BufferType*) { return "HOTSET"; }

size_t get_alignment(BufferType*) { return ALIGNMENT_BYTES; }

bool is_host(BufferType*) { return true; }

Buffer* alloc_buffer(BufferType* type, size_t size) {
    const size_t whole = (size + ALIGNMENT_BYTES - 1) / ALIGNMENT_BYTES * ALIGNMENT_BYTES;
    void* memory = std::aligned_alloc(ALIGNMENT_BYTES, whole);
    if (memory == nullptr) {
        say("no memory for a buffer of %zu bytes", size);
        return nullptr;
    }
    return host.ggml_backend_buffer_init(type, table(false), memory, size);
}

} // namespace

constinit BufferType buffer_type{.table = {.get_name = get_name,
                                           .alloc_buffer = alloc_buffer,
#if HOTSET_GGML_API >= 3
                                           .alloc_buffer_n = nullptr,
#endif
                                           .get_alignment = get_alignment,
                                           .get_max_size = nullptr,
                                           .get_alloc_size = nullptr,
#if HOTSET_GGML_API >= 3
                                           .get_alloc_size_n = nullptr,
#endif
                                           .is_host = is_host},
                                 .device = &device,
                                 .context = nullptr};

Buffer* buffer_from_mapping(Device*, void* address, size_t size, size_t) {
    count(counters->mapped_bytes, size);
    return host.ggml_backend_buffer_init(&buffer_type, table(true), address, size);
}

} // namespace hotset
