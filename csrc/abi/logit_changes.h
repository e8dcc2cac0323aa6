// Changes of single logits: a request's biases, and penalties for the last tokens. These concern few tokens, so only
// their logits are read. The engine's penalty sampler looks up every token of the vocabulary: 1.3 ms for a row of
// 151,936.
#pragma once

#include "abi/llama-spec.h"

#include <cstdint>
#include <deque>
#include <unordered_map>
#include <utility>
#include <vector>

namespace llama_spec {

class logit_changes {
  public:
    logit_changes() = default;
    // penalty_last_n is used unchanged, as a number of tokens.
    logit_changes(const llama_spec_sampler_params & params, int32_t penalty_last_n);

    // Says whether any logit changes now.
    bool any() const { return !biases_.empty() || !counts_.empty(); }

    // Applies biases first, then penalties, as the engine's own chains do. `logit(id)` returns a pointer, or null if
    // the token is no longer a candidate.
    template <typename F> void apply(F && logit) const {
        for (const auto & [id, bias] : biases_) {
            if (float * at = logit(id)) {
                *at += bias;
            }
        }
        for (const auto & [id, count] : counts_) {
            if (float * at = logit(id)) {
                penalise(*at, count);
            }
        }
    }

    void accept(int32_t id);
    // Returns to the beginning of the answer.
    void reset();

  private:
    void penalise(float & logit, int32_t count) const;

    std::vector<std::pair<int32_t, float>> biases_;
    size_t last_n_ = 0;     // 0 without penalties
    float  repeat_ = 1.0f, frequency_ = 0.0f, presence_ = 0.0f;
    std::deque<int32_t> recent_;
    std::unordered_map<int32_t, int32_t> counts_;   // how often each token is in recent_
};

} // namespace llama_spec
