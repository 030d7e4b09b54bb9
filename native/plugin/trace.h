// Which experts the router chose, written down where HOTSET_TRACE names a file. No text, no
// weights: numbers of experts only. Layout: docs/trace.md.
#pragma once

#include "ggml_abi.h"

namespace hotset {

// Begins the file that HOTSET_TRACE names, if any. False, after one line, if that cannot be.
bool trace_open();

// Notes the routing of the batch if `product` is the first of its layer. `stream` stands for the
// context that computes; layers come in the model's order in each. The ids have been checked.
// Whatever goes wrong ends the trace with one line, and never the request.
void trace_batch(const void* stream, const ggml::Tensor* product);

// Writes what is still in memory.
void trace_flush();

} // namespace hotset
