// What hotset uses of ggml's backend interface, declared in hotset's own words.
//
// Every structure here is laid out as the host lays it out; `handshake.cpp` proves that at load
// time through public calls. HOTSET_GGML_API selects the version (2 or 3); they differ in the
// buffer type's table. Source of the facts: ggml/src/ggml-backend-impl.h, ggml/include/ggml.h.
#pragma once

#include <cstddef>
#include <cstdint>

#if HOTSET_GGML_API != 2 && HOTSET_GGML_API != 3
#error "HOTSET_GGML_API must be 2 or 3"
#endif

namespace hotset::ggml {

struct Backend;
struct Buffer;
struct BufferType;
struct Context;
struct Device;
struct Graph;
struct Registration;

// The type numbers of ggml that a file format fixes for good (gguf.h).
enum Type : int { TYPE_F32 = 0, TYPE_I32 = 26, TYPE_I64 = 27 };
enum Status : int { STATUS_FAILED = -1, STATUS_SUCCESS = 0 };
enum DeviceType : int { DEVICE_CPU = 0, DEVICE_ACCEL = 3 };

struct Tensor {
    int type;
    Buffer* buffer;
    int64_t ne[4]; // elements per dimension
    size_t nb[4];  // bytes from one element, row, matrix, block to the next
    int op;
    int32_t op_params[16];
    int32_t flags;
    Tensor* src[10];
    Tensor* view_src;
    size_t view_offs;
    void* data;
    char name[64];
    void* extra;
    char reserved[8];
};

struct InitParams {
    size_t mem_size;
    void* mem_buffer;
    bool no_alloc;
};

struct BufferTypeTable {
    const char* (*get_name)(BufferType*);
    Buffer* (*alloc_buffer)(BufferType*, size_t);
#if HOTSET_GGML_API >= 3
    Buffer* (*alloc_buffer_n)(BufferType*, Tensor**, int); // optional
#endif
    size_t (*get_alignment)(BufferType*);
    size_t (*get_max_size)(BufferType*);                  // optional
    size_t (*get_alloc_size)(BufferType*, const Tensor*); // optional
#if HOTSET_GGML_API >= 3
    size_t (*get_alloc_size_n)(BufferType*, Tensor**, int); // optional
#endif
    bool (*is_host)(BufferType*); // optional; absent means no
};

struct BufferType {
    BufferTypeTable table;
    Device* device;
    void* context;
};

struct BufferTable {
    void (*free_buffer)(Buffer*); // optional
    void* (*get_base)(Buffer*);
    Status (*init_tensor)(Buffer*, Tensor*); // optional
    void (*memset_tensor)(Buffer*, Tensor*, uint8_t, size_t offset, size_t size);
    void (*set_tensor)(Buffer*, Tensor*, const void*, size_t offset, size_t size);
    void (*get_tensor)(Buffer*, const Tensor*, void*, size_t offset, size_t size);
    void* set_tensor_2d;                                  // optional, unused here
    void* get_tensor_2d;                                  // optional, unused here
    bool (*copy_tensor)(Buffer*, const Tensor*, Tensor*); // optional
    void (*clear)(Buffer*, uint8_t);
    void (*reset)(Buffer*); // optional
};

struct Buffer {
    BufferTable table;
    BufferType* type;
    void* context;
    size_t size;
    int usage;
};

struct BackendTable {
    const char* (*get_name)(Backend*);
    void (*free)(Backend*);
    void* set_tensor_async; // optional, as are all but graph_compute from here on
    void* get_tensor_async;
    void* set_tensor_2d_async;
    void* get_tensor_2d_async;
    void* copy_tensor_async;
    void (*synchronize)(Backend*);
    void* graph_plan_create;
    void* graph_plan_free;
    void* graph_plan_update;
    void* graph_plan_compute;
    Status (*graph_compute)(Backend*, Graph*);
    void* event_record;
    void* event_wait;
    void* graph_optimize;
};

struct Backend {
    const uint8_t (*guid)[16];
    BackendTable table;
    Device* device;
    void* context;
};

struct DeviceProps {
    const char* name;
    const char* description;
    size_t memory_free;
    size_t memory_total;
    int type;
    const char* device_id; // none: null
    bool async;
    bool host_buffer;
    bool buffer_from_host_ptr;
    bool events;
    bool mmap_support; // newer hosts; falls into the padding of older ones
};

struct DeviceTable {
    const char* (*get_name)(Device*);
    const char* (*get_description)(Device*);
    void (*get_memory)(Device*, size_t* free, size_t* total);
    int (*get_type)(Device*);
    void (*get_props)(Device*, DeviceProps*);
    Backend* (*init_backend)(Device*, const char* params);
    BufferType* (*get_buffer_type)(Device*);
    BufferType* (*get_host_buffer_type)(Device*);                               // optional
    Buffer* (*buffer_from_host_ptr)(Device*, void*, size_t, size_t max_tensor); // optional
    bool (*supports_op)(Device*, const Tensor*);
    bool (*supports_buft)(Device*, BufferType*);
    bool (*offload_op)(Device*, const Tensor*); // optional
    void* event_new;                            // optional
    void* event_free;                           // optional
    void* event_synchronize;                    // optional
};

struct Device {
    DeviceTable table;
    Registration* registration;
    void* context;
};

struct RegistrationTable {
    const char* (*get_name)(Registration*);
    size_t (*get_device_count)(Registration*);
    Device* (*get_device)(Registration*, size_t index);
    void* (*get_proc_address)(Registration*, const char* name); // optional
};

struct Registration {
    int api_version;
    RegistrationTable table;
    void* context;
};

using SetThreads = void (*)(Backend*, int);
using AbortCallback = bool (*)(void*);
using SetAbortCallback = void (*)(Backend*, AbortCallback, void*);

} // namespace hotset::ggml
