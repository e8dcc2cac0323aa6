// What a request adds to single logits: its biases, and penalties for the tokens that came last. Few of a vocabulary are
// named, so those alone are looked at; the engine's sampler of penalties asks a table about each token of the vocabulary,
// 1.3 ms of a row of 151,936.
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
    // penalty_last_n is taken as it is: a number of tokens.
    logit_changes(const llama_spec_sampler_params & params, int32_t penalty_last_n);

    // Whether any logit changes now.
    bool any() const { return !biases_.empty() || !counts_.empty(); }

    // Biases first, then penalties, as the engine's own chains have them. `logit(id)` gives a pointer, null where the
    // token is no candidate any more.
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
    // Back to where nothing came yet.
    void reset();

  private:
    void penalise(float & logit, int32_t count) const;

    std::vector<std::pair<int32_t, float>> biases_;
    size_t last_n_ = 0;     // 0 where there are no penalties
    float  repeat_ = 1.0f, frequency_ = 0.0f, presence_ = 0.0f;
    std::deque<int32_t> recent_;
    std::unordered_map<int32_t, int32_t> counts_;   // of each token in recent_
};

} // namespace llama_spec
