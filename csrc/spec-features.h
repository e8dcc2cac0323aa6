// What features.cpp offers to the rest of csrc/.
#pragma once

#include "llama.h"

#include <cstddef>
#include <cstdint>

// Enables the inputs of the given layers (0 .. n_layer) and rebuilds the reserved graph.
// Throws std::runtime_error, naming architecture and layer, if the graph does not have one of them.
void llama_spec_enable_layer_inputs(llama_context * ctx, const int32_t * layers, size_t n_layers);

// Tells how many NumPy views point into the context's output buffer. While there are any, a buffer
// that the engine outgrows is kept; at zero the kept ones are freed.
void llama_spec_views_changed(const llama_context * ctx, uint64_t n_views);

const char * llama_spec_arch_name(const llama_model * model);

// Whether the engine keeps recurrent-state snapshots (n_rs_seq) for this architecture.
bool llama_spec_arch_can_roll_back(const llama_model * model);

// Bytes of one sequence's recurrent state, without snapshots; 0 for models that have none.
uint64_t llama_spec_state_bytes(const llama_model * model);
