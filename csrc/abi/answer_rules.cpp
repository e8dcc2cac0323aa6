#include "abi/answer_rules.h"
#include "base/guard.h"

#include <algorithm>
#include <string_view>
#include <unordered_set>

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

bool ends_with(const std::string & text, std::string_view end) {
    return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end.data(), end.size()) == 0;
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

} // namespace

token_pieces::token_pieces(const llama_vocab * vocab) {
    const int32_t n_vocab = llama_vocab_n_tokens(vocab);
    for (int32_t id = 0; id < n_vocab; ++id) {
        text.push_back(piece_of(vocab, id, false));
        by_text.push_back(id);
        if (llama_vocab_is_eog(vocab, id)) {
            ends.push_back(id);
        }
    }
    std::sort(by_text.begin(), by_text.end(), [&](int32_t a, int32_t b) { return text[(size_t) a] < text[(size_t) b]; });
}

namespace {

bool follows_thoughts(const llama_spec_sampler_params & p) {
    return p.thought_start != nullptr && (p.thought_budget >= 0 || p.grammar_skips_thoughts);
}

} // namespace

bool llama_spec::asks_of_answer(const llama_spec_sampler_params & p) {
    return p.min_tokens != 0 || p.ignore_ends || p.n_bad_words != 0 || follows_thoughts(p);
}

struct answer_rules::tables {
    const llama_vocab * vocab = nullptr;
    const token_pieces * pieces = nullptr;
    int64_t min_tokens = 0;
    bool    ignore_ends = false;
    std::vector<int32_t> early;     // ids that are forbidden before min_tokens, sorted
    std::vector<std::string> words;
    size_t longest_word = 0;
    std::vector<int32_t> whole;     // ids whose text contains a forbidden word, sorted
    std::string thought_start;
    std::vector<std::string> thought_ends;
    size_t longest_mark = 0;
    bool    begins_in_thought = false;
    int32_t thought_budget = -1;
    std::vector<int32_t> thought_close;

    void find_whole() {
        std::unordered_set<std::string_view> known(words.begin(), words.end());
        bool begins[256] = {};
        std::vector<size_t> lengths;
        for (const std::string & word : words) {
            begins[(uint8_t) word[0]] = true;
            lengths.push_back(word.size());
        }
        std::sort(lengths.begin(), lengths.end());
        lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
        for (size_t id = 0; id < pieces->text.size(); ++id) {
            const std::string_view text = pieces->text[id];
            bool found = false;
            for (size_t at = 0; at < text.size() && !found; ++at) {
                if (!begins[(uint8_t) text[at]]) {
                    continue;
                }
                for (const size_t n : lengths) {
                    if (n > text.size() - at) {
                        break;
                    }
                    found = found || known.count(text.substr(at, n)) > 0;
                }
            }
            if (found) {
                whole.push_back((int32_t) id);
            }
        }
    }

    // Adds the ids whose text begins with `rest`.
    void add_beginning(std::string_view rest, std::vector<int32_t> & out) const {
        const auto & ids = pieces->by_text;
        const auto first = std::lower_bound(ids.begin(), ids.end(), rest, [&](int32_t id, std::string_view wanted) {
            return std::string_view(pieces->text[(size_t) id]) < wanted;
        });
        for (auto it = first; it != ids.end(); ++it) {
            const std::string_view text = pieces->text[(size_t) *it];
            if (text.substr(0, rest.size()) != rest) {
                break;
            }
            out.push_back(*it);
        }
    }
};

answer_rules::answer_rules(const llama_spec_sampler_params & p, const llama_vocab * vocab, const token_pieces & pieces) {
    auto made = std::make_shared<tables>();
    made->vocab       = vocab;
    made->pieces      = &pieces;
    made->min_tokens  = p.min_tokens;
    made->ignore_ends = p.ignore_ends;
    made->early       = made->pieces->ends;
    made->early.insert(made->early.end(), p.stop_ids, p.stop_ids + p.n_stop_ids);
    std::sort(made->early.begin(), made->early.end());
    for (int32_t i = 0; i < p.n_bad_words; ++i) {
        require(p.bad_words[i][0] != '\0', "a forbidden word is empty");
        made->words.emplace_back(p.bad_words[i]);
        made->longest_word = std::max(made->longest_word, made->words.back().size());
    }
    made->find_whole();
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

bool answer_rules::any_forbidden(bool ends) const {
    return tables_ && (!tables_->words.empty() || (ends && forbids_ends()));
}

bool answer_rules::completes_word(const std::string & piece) const {
    const std::string both = text_ + piece;
    for (const std::string & word : tables_->words) {
        // Skips words that end before this token's text: an earlier token would have completed those, and none may.
        const size_t from = text_.size() >= word.size() ? text_.size() - word.size() + 1 : 0;
        if (both.find(word, from) != std::string::npos) {
            return true;
        }
    }
    return false;
}

bool answer_rules::forbids(int32_t id, bool ends) const {
    if (!any_forbidden(ends)) {
        return false;
    }
    if (ends && tables_->ignore_ends && holds(tables_->pieces->ends, id)) {
        return true;
    }
    if (ends && n_generated_ < tables_->min_tokens && holds(tables_->early, id)) {
        return true;
    }
    return !tables_->words.empty() && completes_word(tables_->pieces->text[(size_t) id]);
}

std::vector<int32_t> answer_rules::forbidden(bool ends) const {
    std::vector<int32_t> out;
    if (!tables_) {
        return out;
    }
    if (ends && tables_->ignore_ends) {
        out = tables_->pieces->ends;
    }
    if (ends && n_generated_ < tables_->min_tokens) {
        out.insert(out.end(), tables_->early.begin(), tables_->early.end());
    }
    out.insert(out.end(), tables_->whole.begin(), tables_->whole.end());
    for (const std::string & word : tables_->words) {
        for (size_t n = std::min(word.size() - 1, text_.size()); n > 0; --n) {
            if (ends_with(text_, std::string_view(word).substr(0, n))) {
                tables_->add_beginning(std::string_view(word).substr(n), out);
            }
        }
    }
    return out;
}

void answer_rules::accept(int32_t id) {
    if (!tables_) {
        return;
    }
    ++n_generated_;
    if (!tables_->words.empty()) {
        text_ += tables_->pieces->text[(size_t) id];
        trim(text_, tables_->longest_word - 1);
    }
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
