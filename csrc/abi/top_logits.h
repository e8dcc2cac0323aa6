// The likeliest k tokens of a row, without a list of the whole vocabulary.
#pragma once

#include "llama.h"

#include <cstdint>
#include <vector>

namespace llama_spec {

// Writes the k largest logits in descending order; `room` is scratch memory. Returns false, with `out` unspecified, where the
// engine has to sort: two of them are equal, whose order is its sort's, some are NaN, fewer than k are above minus infinity,
// or k is so large that a list of all is as fast.
bool top_logits(const float * logits, int32_t n_vocab, int32_t k, std::vector<float> & room, std::vector<llama_token_data> & out);

} // namespace llama_spec
