// Call sites that vendor/patches/ puts into the engine. Private: it sees the engine's C++ types.
// The logic is in layer_inputs.cpp, output_buffers.cpp and snapshots.cpp; a patch holds nothing but a call.
#pragma once

#include "llama.h"

#include "ggml-cpp.h"

#include <cstdint>

class  llama_memory_recurrent;
class  llm_graph_result;
struct llm_graph_context;
struct llm_graph_params;
struct llama_context;
struct llama_model;

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

// ---- snapshots of recurrent states: snapshots.cpp

// Whether the graph of this model writes them.
bool llama_spec_has_snapshots(const llama_model & model);

// The cell for a sequence that has none of its own; `next` is the engine's choice.
uint32_t llama_spec_cell_for(const llama_memory_recurrent & memory, int32_t seq, uint32_t next);

// Two cells are about to change places; the snapshots do not go along.
void llama_spec_on_move(llama_memory_recurrent & memory, int32_t dst, int32_t src);

// How many planes a cell has: its state, and the snapshots.
int64_t llama_spec_n_planes(const llm_graph_context & graph);

// Stores, in as many planes as the batch has tokens for, the windows of a convolution. input: {n_window + n_tokens,
// n_channels, n_seqs}; windows: the cache, {row, n_cells * n_planes}, in whose rows they begin at element `at`.
void llama_spec_store_windows(const llm_graph_context & graph, ggml_tensor * input, ggml_tensor * windows, int64_t n_window,
                              uint32_t head, int64_t at);

// The same for the states that ggml_ssm_scan() has returned behind its output.
void llama_spec_store_states(const llm_graph_context & graph, ggml_tensor * scan, ggml_tensor * states, uint32_t head);
