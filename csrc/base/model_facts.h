// Facts about a model that the engine's public functions do not give.
#pragma once

#include "ggml-backend.h"
#include "ggml.h"

#include <cstdint>
#include <utility>
#include <vector>

struct llama_model;

const char * llama_spec_arch_name(const llama_model * model);

// How many layers, the output counted as one, have weights on a GPU or another machine. 0 with vocab_only.
int32_t llama_spec_n_device_layers(const llama_model * model);

// Each device that holds layers, in order, with its number of layers, the output counted as one. Empty with vocab_only.
std::vector<std::pair<ggml_backend_dev_t, int32_t>> llama_spec_placement(const llama_model * model);

// The minimum size of a position in a key cache of this type, over all layers that keep every position; 0 for other
// kinds of cache. is_head: for a context of the model's MTP head, which has only the head's layer.
uint64_t llama_spec_key_bytes(const llama_model * model, ggml_type type, bool swa_full, bool is_head);

// The size of a layer's key heads that this type's blocks do not divide; 0 if they divide all.
uint32_t llama_spec_odd_head(const llama_model * model, ggml_type type_k);

// The number of rows in the model's position table; a huge number without one.
int32_t llama_spec_n_positions(const llama_model * model);

// How many positions the engine reads for a row without an id: 4 for a model with M-RoPE.
int32_t llama_spec_n_pos_per_row(const llama_model * model);
