// Draws with noise that a draft can compute in advance: the choice is the id with the largest logit + noise. With
// Gumbel noise this samples from the softmax of the logits. The noise depends only on the seed, the token's index in
// the answer, and the id. So a draft model with the same noise often draws what its target draws (arXiv 2408.07978),
// and the target draws the same with any draft or none.
#pragma once

#include "llama.h"

#include <cstddef>
#include <cstdint>

namespace llama_spec {

// Gumbel noise; place: the number of earlier tokens in the answer.
double shared_noise(uint32_t seed, uint64_t place, int32_t id);

struct noise_draw {
    bool     is_on = false;
    uint32_t seed  = 0;
    uint64_t place = 0;     // tokens generated so far

    // The index of the drawn candidate; of equal ones, that with the lowest id; -1 if none has a chance. The logits
    // come after all cuts and the temperature. A NaN is chosen, so that the caller reports it.
    int64_t choose(const llama_token_data * candidates, size_t n) const;
};

} // namespace llama_spec
