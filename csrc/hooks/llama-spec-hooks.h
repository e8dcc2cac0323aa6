// Call sites that vendor/patches/ puts into the engine. Private: it sees the engine's C++ types.
// The logic is in layer_inputs.cpp and output_buffers.cpp; a patch holds nothing but a call.
#pragma once

#include "llama.h"

#include "ggml-cpp.h"

#include <cstdint>

class  llm_graph_result;
struct llm_graph_context;
struct llm_graph_params;
struct llama_context;

// Called for every named tensor of a graph: takes "l_out" of layer i as the input of layer i + 1.
void llama_spec_on_tensor(const llm_graph_context & graph, ggml_tensor * cur, const char * name, int il);

// Rows that the last layer computes. Models drop the rows without an output there; a tap on the last
// layer's output needs all of them, so the dropping moves to llama_spec_before_norm.
int64_t llama_spec_n_rows_last_layer(const llm_graph_context & graph);

// Called on entry to every norm: the first one after the last layer drops the rows without an output.
ggml_tensor * llama_spec_before_norm(const llm_graph_context & graph, ggml_tensor * cur, int il);

// Throws, with the architecture and the layer, if a wanted layer input was not found in the graph.
void llama_spec_check_graph(const llm_graph_result & res, const llm_graph_params & params);

// The engine is about to allocate, and clear, a memory of past tokens: throws llama_spec::no_room where the host has
// not enough. Logic: checks/memory_room.cpp.
void llama_spec_before_memory(ggml_context * tensors, ggml_backend_buffer_type_t type);

// The engine is about to free an output buffer that NumPy views may still point into.
void llama_spec_retire_output(llama_context * ctx, ggml_backend_buffer_ptr && buffer);
