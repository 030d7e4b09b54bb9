// The ggml functions of the process that loaded this plugin, found at run time.
#pragma once

#include "ggml_abi.h"

namespace hotset {

// name in ggml, result, arguments: the one list from which declarations and look-up are made.
#define HOTSET_HOST_FUNCTIONS(X)                                                                   \
    X(ggml_init, ggml::Context*, (ggml::InitParams))                                               \
    X(ggml_free, void, (ggml::Context*))                                                           \
    X(ggml_tensor_overhead, size_t, ())                                                            \
    X(ggml_graph_overhead_custom, size_t, (size_t size, bool grads))                               \
    X(ggml_new_tensor_4d, ggml::Tensor*,                                                           \
      (ggml::Context*, int type, int64_t, int64_t, int64_t, int64_t))                              \
    X(ggml_view_1d, ggml::Tensor*, (ggml::Context*, ggml::Tensor*, int64_t, size_t offset))        \
    X(ggml_reshape_1d, ggml::Tensor*, (ggml::Context*, ggml::Tensor*, int64_t))                    \
    X(ggml_permute, ggml::Tensor*, (ggml::Context*, ggml::Tensor*, int, int, int, int))            \
    X(ggml_transpose, ggml::Tensor*, (ggml::Context*, ggml::Tensor*))                              \
    X(ggml_mul_mat, ggml::Tensor*, (ggml::Context*, ggml::Tensor*, ggml::Tensor*))                 \
    X(ggml_mul_mat_id, ggml::Tensor*,                                                              \
      (ggml::Context*, ggml::Tensor * weights, ggml::Tensor * rows, ggml::Tensor * ids))           \
    X(ggml_swiglu_split, ggml::Tensor*, (ggml::Context*, ggml::Tensor * gate, ggml::Tensor * up))  \
    X(ggml_add_id, ggml::Tensor*,                                                                  \
      (ggml::Context*, ggml::Tensor * rows, ggml::Tensor * bias, ggml::Tensor * ids))              \
    X(ggml_get_rows, ggml::Tensor*, (ggml::Context*, ggml::Tensor*, ggml::Tensor * which))         \
    X(ggml_set_rows, ggml::Tensor*,                                                                \
      (ggml::Context*, ggml::Tensor*, ggml::Tensor * rows, ggml::Tensor * which))                  \
    X(ggml_nelements, int64_t, (const ggml::Tensor*))                                              \
    X(ggml_nbytes, size_t, (const ggml::Tensor*))                                                  \
    X(ggml_type_size, size_t, (int type))                                                          \
    X(ggml_op_desc, const char*, (const ggml::Tensor*))                                            \
    X(ggml_get_name, const char*, (const ggml::Tensor*))                                           \
    X(ggml_get_data, void*, (const ggml::Tensor*))                                                 \
    X(ggml_new_graph_custom, ggml::Graph*, (ggml::Context*, size_t size, bool grads))              \
    X(ggml_build_forward_expand, void, (ggml::Graph*, ggml::Tensor*))                              \
    X(ggml_graph_n_nodes, int, (ggml::Graph*))                                                     \
    X(ggml_graph_node, ggml::Tensor*, (ggml::Graph*, int))                                         \
    X(ggml_backend_buffer_init, ggml::Buffer*,                                                     \
      (ggml::BufferType*, ggml::BufferTable, void* context, size_t))                               \
    X(ggml_backend_buffer_free, void, (ggml::Buffer*))                                             \
    X(ggml_backend_buffer_get_type, ggml::BufferType*, (ggml::Buffer*))                            \
    X(ggml_backend_buffer_get_size, size_t, (ggml::Buffer*))                                       \
    X(ggml_backend_buffer_get_base, void*, (ggml::Buffer*))                                        \
    X(ggml_backend_buffer_clear, void, (ggml::Buffer*, uint8_t))                                   \
    X(ggml_backend_buffer_reset, void, (ggml::Buffer*))                                            \
    X(ggml_backend_tensor_alloc, int, (ggml::Buffer*, ggml::Tensor*, void*))                       \
    X(ggml_backend_cpu_buffer_from_ptr, ggml::Buffer*, (void*, size_t))                            \
    X(ggml_backend_buft_name, const char*, (ggml::BufferType*))                                    \
    X(ggml_backend_buft_alloc_buffer, ggml::Buffer*, (ggml::BufferType*, size_t))                  \
    X(ggml_backend_buft_get_alignment, size_t, (ggml::BufferType*))                                \
    X(ggml_backend_buft_get_max_size, size_t, (ggml::BufferType*))                                 \
    X(ggml_backend_buft_is_host, bool, (ggml::BufferType*))                                        \
    X(ggml_backend_buft_get_device, ggml::Device*, (ggml::BufferType*))                            \
    X(ggml_backend_dev_name, const char*, (ggml::Device*))                                         \
    X(ggml_backend_dev_type, int, (ggml::Device*))                                                 \
    X(ggml_backend_dev_init, ggml::Backend*, (ggml::Device*, const char*))                         \
    X(ggml_backend_dev_buffer_type, ggml::BufferType*, (ggml::Device*))                            \
    X(ggml_backend_dev_buffer_from_host_ptr, ggml::Buffer*,                                        \
      (ggml::Device*, void*, size_t, size_t))                                                      \
    X(ggml_backend_dev_supports_op, bool, (ggml::Device*, const ggml::Tensor*))                    \
    X(ggml_backend_dev_supports_buft, bool, (ggml::Device*, ggml::BufferType*))                    \
    X(ggml_backend_dev_offload_op, bool, (ggml::Device*, const ggml::Tensor*))                     \
    X(ggml_backend_dev_backend_reg, ggml::Registration*, (ggml::Device*))                          \
    X(ggml_backend_dev_by_type, ggml::Device*, (int))                                              \
    X(ggml_backend_reg_name, const char*, (ggml::Registration*))                                   \
    X(ggml_backend_reg_dev_count, size_t, (ggml::Registration*))                                   \
    X(ggml_backend_reg_get_proc_address, void*, (ggml::Registration*, const char*))                \
    X(ggml_backend_name, const char*, (ggml::Backend*))                                            \
    X(ggml_backend_free, void, (ggml::Backend*))                                                   \
    X(ggml_backend_get_device, ggml::Device*, (ggml::Backend*))                                    \
    X(ggml_backend_synchronize, void, (ggml::Backend*))                                            \
    X(ggml_backend_graph_compute, int, (ggml::Backend*, ggml::Graph*))

struct Host {
#define HOTSET_DECLARE(name, result, arguments) result(*name) arguments;
    HOTSET_HOST_FUNCTIONS(HOTSET_DECLARE)
#undef HOTSET_DECLARE
};

// Filled by host_resolve, constant afterwards.
extern Host host;

// Finds every function, in the object that holds `caller` (an address inside the host's plugin
// loader) and what it depends on, else among the global symbols.
// Returns null on success, else the name of the first function that is missing.
const char* host_resolve(void* caller);

// Prints "hotset: <message>" as one line on standard error.
[[gnu::format(printf, 1, 2)]] void say(const char* format, ...);

} // namespace hotset
