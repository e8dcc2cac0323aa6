// Layer inputs for every architecture.
#pragma once

#include "llama.h"

#include <cstddef>
#include <cstdint>

// Enables the inputs of the given layers (0 .. n_layer, or LLAMA_SPEC_HEAD_ROWS) and rebuilds the reserved graph.
// Throws std::runtime_error, naming architecture and layer, if the graph does not have one of them.
void llama_spec_enable_layer_inputs(llama_context * ctx, const int32_t * layers, size_t n_layers);
