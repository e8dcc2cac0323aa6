#include "abi/answer_rules.h"
#include "base/guard.h"

#include <algorithm>

using namespace llama_spec;

namespace {

std::string piece_of(const llama_vocab * vocab, int32_t id, bool special) {
    std::string out(64, '\0');
    int32_t n = llama_token_to_piece(vocab, id, out.data(), (int32_t) out.size(), 0, special);
    if (n < 0) {
        out.resize((size_t) -n);
        n = llama_token_to_piece(vocab, id, out.data(), (int32_t) out.size(), 0, special);
    }
    out.resize((size_t) std::max(n, 0));
    return out;
}

// Keeps the last n bytes.
void trim(std::string & text, size_t n) {
    if (text.size() > n) {
        text.erase(0, text.size() - n);
    }
}

bool holds(const std::vector<int32_t> & sorted, int32_t id) {
    return std::binary_search(sorted.begin(), sorted.end(), id);
}

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

struct answer_rules::tables {
    const llama_vocab * vocab = nullptr;
    int64_t min_tokens = 0;
    bool    ignore_ends = false;
    std::vector<int32_t> ends;      // ids that end a generation, sorted
    std::vector<int32_t> early;     // ids that are forbidden before min_tokens, sorted
    std::string thought_start;
    std::vector<std::string> thought_ends;
    size_t longest_mark = 0;
    bool    begins_in_thought = false;
    int32_t thought_budget = -1;
    std::vector<int32_t> thought_close;
};

answer_rules::answer_rules(const llama_spec_sampler_params & p, const llama_vocab * vocab, const std::vector<int32_t> & ends) {
    auto made = std::make_shared<tables>();
    made->vocab       = vocab;
    made->min_tokens  = p.min_tokens;
    made->ignore_ends = p.ignore_ends;
    made->ends = made->early = ends;
    made->early.insert(made->early.end(), p.stop_ids, p.stop_ids + p.n_stop_ids);
    std::sort(made->early.begin(), made->early.end());
    if (follows_thoughts(p)) {
        made->thought_start = p.thought_start;
        made->longest_mark  = made->thought_start.size();
        for (int32_t i = 0; i < p.n_thought_ends; ++i) {
            made->thought_ends.emplace_back(p.thought_ends[i]);
            made->longest_mark = std::max(made->longest_mark, made->thought_ends.back().size());
        }
        made->begins_in_thought = p.thought_is_open;
        made->thought_budget    = p.thought_budget;
        made->thought_close.assign(p.thought_close, p.thought_close + p.n_thought_close);
    }
    for (const auto * ids : { &made->early, &made->thought_close }) {
        for (const int32_t id : *ids) {
            require(id >= 0 && id < llama_vocab_n_tokens(vocab), "a token that stops the text is outside the vocabulary");
        }
    }
    tables_ = std::move(made);
    if (tables_->begins_in_thought) {
        begin_thought();
    }
}

int32_t answer_rules::forced() const {
    return force_at_ < 0 ? -1 : tables_->thought_close[(size_t) force_at_];
}

bool answer_rules::forbids_ends() const {
    return tables_ && (tables_->ignore_ends || n_generated_ < tables_->min_tokens);
}

bool answer_rules::forbids(int32_t id) const {
    return forbids_ends() && holds(n_generated_ < tables_->min_tokens ? tables_->early : tables_->ends, id);
}

std::vector<int32_t> answer_rules::forbidden() const {
    if (!forbids_ends()) {
        return {};
    }
    return n_generated_ < tables_->min_tokens ? tables_->early : tables_->ends;
}

void answer_rules::accept(int32_t id) {
    if (!tables_) {
        return;
    }
    ++n_generated_;
    if (!tables_->thought_start.empty()) {
        follow_thought(id);
    }
}

void answer_rules::begin_thought() {
    thinking_ = true;
    raw_.clear();
    recent_.clear();
    if (tables_->thought_budget >= 0 && n_thought_ >= tables_->thought_budget) {
        force_at_ = 0;
    }
}

void answer_rules::follow_thought(int32_t id) {
    const tables & t = *tables_;
    raw_ += piece_of(t.vocab, id, true);
    if (!thinking_) {
        if (raw_.find(t.thought_start) != std::string::npos) {
            begin_thought();
        }
        trim(raw_, t.longest_mark - 1);
        return;
    }
    recent_.push_back(id);
    if (force_at_ >= 0) {
        ++force_at_;
    } else {
        ++n_thought_;
    }
    const bool is_closed = force_at_ == (int32_t) t.thought_close.size();
    const bool has_ended = std::any_of(t.thought_ends.begin(), t.thought_ends.end(), [&](const std::string & end) {
        return raw_.find(end) != std::string::npos;
    });
    if (is_closed || (has_ended && force_at_ < 0)) {
        thinking_ = false;
        force_at_ = -1;
        raw_.clear();
        recent_.clear();
        return;
    }
    trim(raw_, t.longest_mark - 1);
    if (force_at_ < 0 && t.thought_budget >= 0 && n_thought_ >= t.thought_budget) {
        // The model may have generated a part of the closing tokens already: continues after that part.
        size_t n = std::min(recent_.size(), t.thought_close.size() - 1);
        while (n > 0 && !std::equal(t.thought_close.begin(), t.thought_close.begin() + (std::ptrdiff_t) n, recent_.end() - (std::ptrdiff_t) n)) {
            --n;
        }
        force_at_ = (int32_t) n;
    }
    if (recent_.size() > t.thought_close.size()) {
        recent_.erase(recent_.begin());
    }
}
