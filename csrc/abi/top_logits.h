// Finds the k likeliest tokens of a row, without a list of the whole vocabulary.
#pragma once

#include "llama.h"

#include <cstdint>
#include <vector>

namespace llama_spec {

// Writes the k largest logits in descending order; `room` is scratch memory. Returns false, with `out` unspecified, if
// the engine has to sort instead. That is the case if two of them are equal (the engine's sort decides their order), if
// some are NaN, if fewer than k are above minus infinity, or if k is so large that a full list is as fast.
bool top_logits(const float * logits, int32_t n_vocab, int32_t k, std::vector<float> & room, std::vector<llama_token_data> & out);

} // namespace llama_spec
