#include "abi/answer_rules.h"
#include "base/guard.h"

#include "common.h"

using namespace llama_spec;

namespace {

bool follows_thoughts(const llama_spec_sampler_params & p) {
    return p.thought_start != nullptr && (p.thought_budget >= 0 || p.grammar_skips_thoughts);
}

} // namespace

std::vector<int32_t> llama_spec::end_ids(const llama_vocab * vocab) {
    std::vector<int32_t> out;
    for (int32_t id = 0; id < llama_vocab_n_tokens(vocab); ++id) {
        if (llama_vocab_is_eog(vocab, id)) {
            out.push_back(id);
        }
    }
    return out;
}

bool llama_spec::asks_of_answer(const llama_spec_sampler_params & p) {
    return p.min_tokens != 0 || p.ignore_ends || follows_thoughts(p);
}

answer_rules::answer_rules(const llama_spec_sampler_params & p, const llama_vocab * vocab, const std::vector<int32_t> & ends)
    : vocab_(vocab), min_tokens_(p.min_tokens), ignore_ends_(p.ignore_ends), ends_(ends), early_(ends) {
    early_.insert(early_.end(), p.stop_ids, p.stop_ids + p.n_stop_ids);
    std::sort(early_.begin(), early_.end());
    if (follows_thoughts(p)) {
        thoughts_       = thoughts(p);
        thought_budget_ = p.thought_budget;
        thought_close_.assign(p.thought_close, p.thought_close + p.n_thought_close);
        force_at_ = thoughts_.is_open && thought_budget_ == 0 ? 0 : -1;
    }
    for (const auto * ids : { &early_, &thought_close_ }) {
        for (const int32_t id : *ids) {
            require(id >= 0 && id < llama_vocab_n_tokens(vocab), "a token that stops the text is outside the vocabulary");
        }
    }
}

const std::vector<int32_t> & answer_rules::forbidden() const {
    static const std::vector<int32_t> none;
    return n_generated_ < min_tokens_ ? early_ : ignore_ends_ ? ends_ : none;
}

void answer_rules::accept(int32_t id) {
    ++n_generated_;
    if (!thoughts_.start.empty()) {
        count_thought(id);
    }
}

void answer_rules::count_thought(int32_t id) {
    const bool was_open = thoughts_.is_open;
    thoughts_.shown(id, common_token_to_piece(vocab_, id, true));
    if (force_at_ >= 0) {
        if (++force_at_ == (int32_t) thought_close_.size()) {
            force_at_ = -1;
            thoughts_.is_open = false;
            recent_.clear();
        }
        return;
    }
    if (was_open) {
        ++n_thought_;
        recent_.push_back(id);
    }
    if (!thoughts_.is_open) {
        recent_.clear();
        return;
    }
    if (thought_budget_ >= 0 && n_thought_ >= thought_budget_) {
        // The model may have generated a part of the closing tokens already: continues after that part.
        size_t n = std::min(recent_.size(), thought_close_.size() - 1);
        while (n > 0 && !std::equal(recent_.end() - (std::ptrdiff_t) n, recent_.end(), thought_close_.begin())) {
            --n;
        }
        force_at_ = (int32_t) n;
    }
    if (recent_.size() > thought_close_.size()) {
        recent_.erase(recent_.begin());
    }
}
