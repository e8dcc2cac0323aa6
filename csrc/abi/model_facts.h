// What csrc/ wants to know of a model and the engine's public functions do not say.
#pragma once

#include "ggml.h"

#include <cstdint>

struct llama_model;

const char * llama_spec_arch_name(const llama_model * model);

// Whether the engine keeps recurrent-state snapshots (n_rs_seq) for this architecture.
bool llama_spec_arch_can_roll_back(const llama_model * model);
// Bytes of the recurrent state of one sequence, of all layers; snapshots take as much each.
uint64_t llama_spec_state_bytes(const llama_model * model);

// How many layers, the output counted as one, have their weights on a GPU or on another machine. 0 of a vocabulary.
int32_t llama_spec_n_device_layers(const llama_model * model);

// The least that a position takes in a cache of keys of this type, over all layers that keep every position; 0 where
// the cache is of another kind.
uint64_t llama_spec_key_bytes(const llama_model * model, ggml_type type, bool swa_full);

// How many rows the model's table of positions has; a great number for a model without one.
int32_t llama_spec_n_positions(const llama_model * model);

// How many positions the engine reads of a token that is a row without an id: 4 of a model with M-RoPE.
int32_t llama_spec_n_pos_per_row(const llama_model * model);
