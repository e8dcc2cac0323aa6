#include "abi/logit_changes.h"

#include <algorithm>

namespace llama_spec {

logit_changes::logit_changes(const llama_spec_sampler_params & p, int32_t penalty_last_n)
    : repeat_(p.repeat_penalty), frequency_(p.frequency_penalty), presence_(p.presence_penalty) {
    for (int32_t i = 0; i < p.n_bias; ++i) {
        biases_.emplace_back(p.bias_ids[i], p.bias[i]);
    }
    if (repeat_ != 1.0f || frequency_ != 0.0f || presence_ != 0.0f) {
        last_n_ = (size_t) std::max(penalty_last_n, 0);
    }
}

// Dividing lowers a positive logit but raises a negative one, so a negative one is multiplied.
void logit_changes::penalise(float & logit, int32_t count) const {
    if (logit <= 0) {
        logit *= repeat_;
    } else {
        logit /= repeat_;
    }
    logit -= float(count) * frequency_ + presence_;
}

void logit_changes::accept(int32_t id) {
    if (last_n_ == 0) {
        return;
    }
    ++counts_[id];
    recent_.push_back(id);
    if (recent_.size() > last_n_) {
        const auto oldest = counts_.find(recent_.front());
        if (--oldest->second == 0) {
            counts_.erase(oldest);
        }
        recent_.pop_front();
    }
}

void logit_changes::reset() {
    recent_.clear();
    counts_.clear();
}

} // namespace llama_spec
