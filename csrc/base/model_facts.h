// What csrc/ wants to know of a model and the engine's public functions do not say.
#pragma once

#include "ggml-backend.h"
#include "ggml.h"

#include <cstdint>
#include <utility>
#include <vector>

struct llama_model;

const char * llama_spec_arch_name(const llama_model * model);

// How many layers, the output counted as one, have their weights on a GPU or on another machine. 0 of a vocabulary.
int32_t llama_spec_n_device_layers(const llama_model * model);

// Each device that holds layers, in their order, and how many, the output counted as one. Empty of a vocabulary.
std::vector<std::pair<ggml_backend_dev_t, int32_t>> llama_spec_placement(const llama_model * model);

// The least that a position takes in a cache of keys of this type, over all layers that keep every position; 0 where
// the cache is of another kind. is_head: of a context of the model's MTP head, which has its layer alone.
uint64_t llama_spec_key_bytes(const llama_model * model, ggml_type type, bool swa_full, bool is_head);

// The size of a layer's key heads that blocks of this type do not divide; 0 where they divide all.
uint32_t llama_spec_odd_head(const llama_model * model, ggml_type type_k);

// How many rows the model's table of positions has; a great number for a model without one.
int32_t llama_spec_n_positions(const llama_model * model);

// How many positions the engine reads of a token that is a row without an id: 4 of a model with M-RoPE.
int32_t llama_spec_n_pos_per_row(const llama_model * model);
