// Call sites that vendor/patches/ adds to the engine. Private: it uses the engine's C++ types. The logic is in this
// folder and in checks/; patches only add calls.
#pragma once

#include "checks/llama-spec-bounds.h"
#include "kernels/scan.h"

#include "ggml-cpp.h"
#include "llama.h"

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

class  llama_io_write_i;
class  llama_memory_recurrent;
class  llm_graph_input_rs;
class  llm_graph_result;
struct llm_graph_context;
struct llm_graph_params;
struct llama_context;
struct llama_model;
struct llama_ubatch;
struct llama_spec_graphs;

// Called for every named tensor of a graph: takes "l_out" of layer i as the input of layer i + 1.
void llama_spec_on_tensor(const llm_graph_context & graph, ggml_tensor * cur, const char * name, int il);

// The number of rows that the last layer computes. Models drop rows without an output there; an input taken after the
// last layer needs all of them, so llama_spec_before_norm drops them instead.
int64_t llama_spec_n_rows_last_layer(const llm_graph_context & graph);

// Called on entry to every norm: the first one after the last layer drops the rows without an output.
ggml_tensor * llama_spec_before_norm(const llm_graph_context & graph, ggml_tensor * cur, int il);

// Throws, with the architecture and the layer, if the graph lacks a requested layer input. Drops an MTP head's rows
// without an output, if its graph kept them.
void llama_spec_check_graph(llm_graph_result & res, const llm_graph_params & params);

// Called before the engine frees an output buffer that NumPy views may still point into.
void llama_spec_retire_output(llama_context * ctx, ggml_backend_buffer_ptr && buffer);

// ---- graphs by the shape of their batch: graphs.cpp

// The engine's objects for computing a batch.
struct llama_spec_graph_slot {
    ggml_backend_sched_ptr & sched;
    std::array<std::unique_ptr<llm_graph_result>, 2> & results;
    llm_graph_result * & active;    // the result whose graph is allocated
};

// Called before a batch is computed, and before the engine looks for a graph to reuse: puts the objects of the last
// batch with this shape into the slot. make_sched: makes a scheduler like the engine's own.
void llama_spec_enter_graph(std::shared_ptr<llama_spec_graphs> & graphs, const llama_spec_graph_slot & slot,
                            const std::vector<ggml_backend_t> & backends, const llama_ubatch & ubatch, int32_t n_outputs,
                            int gtype, const std::function<ggml_backend_sched_t()> & make_sched);

// Called before the engine reserves or changes what graphs depend on: restores the engine's own objects, and discards
// all others.
void llama_spec_leave_graphs(std::shared_ptr<llama_spec_graphs> & graphs, const llama_spec_graph_slot & slot);

// ---- snapshots of recurrent states: snapshots.cpp

// Says whether this model's graph writes snapshots.
bool llama_spec_has_snapshots(const llama_model & model);

// Chooses the cell for a sequence without one; `next` is the engine's choice.
uint32_t llama_spec_cell_for(const llama_memory_recurrent & memory, int32_t seq, uint32_t next);

// Called before two cells swap places: the snapshots do not move with them.
void llama_spec_on_move(llama_memory_recurrent & memory, int32_t dst, int32_t src);

// How many planes a cell has: its state and the snapshots.
int64_t llama_spec_n_planes(const llm_graph_context & graph);

// Stores the windows of a convolution in as many planes as the batch has tokens for. input: {n_window + n_tokens,
// n_channels, n_seqs}; windows: the cache, {row, n_cells * n_planes}; a window begins at element `at` of a row.
void llama_spec_store_windows(const llm_graph_context & graph, ggml_tensor * input, ggml_tensor * windows, int64_t n_window,
                              uint32_t head, int64_t at);

// The same for the states that ggml_ssm_scan() returns after its output.
void llama_spec_store_states(const llm_graph_context & graph, ggml_tensor * scan, ggml_tensor * states, uint32_t head);

// ---- states that are scanned in place: state_scan.cpp and kernels/scan.h

// n_heads is 0 if the engine's own scan runs.
pyllama_spec_scan_shape llama_spec_scan_shape(const llama_model & model, uint32_t n_rs_seq);

// The tensor of a layer's logs, or NULL.
ggml_tensor * llama_spec_scan_log(const llama_memory_recurrent & memory, ggml_context * ctx, int il);

// These return NULL if the engine's own scan runs. The first returns a placeholder for a batch's states, which are not
// gathered.
ggml_tensor * llama_spec_state_place(const llm_graph_context & graph, const llm_graph_input_rs & inp, ggml_tensor * states,
                                     int64_t n_seqs);
// These two return the output {n_rows, n_heads, n_tokens, n_seqs} of a gated delta net, and of Mamba-2, where other
// numbers follow it.
ggml_tensor * llama_spec_delta_scan(const llm_graph_context & graph, const llm_graph_input_rs & inp, ggml_tensor * states,
                                    ggml_tensor * q, ggml_tensor * k, ggml_tensor * v, ggml_tensor * g, ggml_tensor * beta);
ggml_tensor * llama_spec_ssm_scan(const llm_graph_context & graph, const llm_graph_input_rs & inp, ggml_tensor * states,
                                  ggml_tensor * x, ggml_tensor * dt, ggml_tensor * a, ggml_tensor * b, ggml_tensor * c);

// Writes states, depth * n_cells + cell, if some are not the newest. Returns false, and writes nothing, if all are the
// newest, or if planes hold them.
bool llama_spec_write_earlier(const llama_memory_recurrent & memory, llama_io_write_i & io, int il, uint32_t begin, uint32_t end);
