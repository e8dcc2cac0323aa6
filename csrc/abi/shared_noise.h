// A draw by noise of which a draft can know beforehand: what is chosen is the id with the largest logit + noise. With Gumbel
// noise that is a draw from the softmax of the logits. The noise depends on the seed, the number of the answer's token and
// the id alone, so that a draft model with the same noise often draws what its target draws (arXiv 2408.07978), and the
// target draws the same with any draft and with none.
#pragma once

#include "llama.h"

#include <cstddef>
#include <cstdint>

namespace llama_spec {

// Gumbel noise; place: how many tokens of the answer come before.
double shared_noise(uint32_t seed, uint64_t place, int32_t id);

struct noise_draw {
    bool     is_on = false;
    uint32_t seed  = 0;
    uint64_t place = 0;     // tokens generated until now

    // Which candidate is drawn, of equal ones that of the lowest id; -1 where none has a chance. Their logits are behind all
    // cuts and the temperature. A NaN is chosen, so that it is reported.
    int64_t choose(const llama_token_data * candidates, size_t n) const;
};

} // namespace llama_spec
