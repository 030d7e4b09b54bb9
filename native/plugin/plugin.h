// The plugin's parts as they see each other.
#pragma once

#include "ggml_abi.h"

namespace hotset {

// device.cpp: the one device, and the registration that owns it.
extern ggml::Device device;
extern ggml::Registration registration;

// buffer.cpp: the buffer type "HOTSET": host memory in ggml's plain layout, either a range of a
// mapped file or plain memory.
extern ggml::BufferType buffer_type;
ggml::Buffer* buffer_from_mapping(ggml::Device*, void* address, size_t size, size_t max_tensor);

// backend.cpp: one per llama context.
ggml::Backend* backend_new(ggml::Device*, const char* params);
// Null for a name that is not known.
void* backend_proc_address(ggml::Registration*, const char* name);

} // namespace hotset
