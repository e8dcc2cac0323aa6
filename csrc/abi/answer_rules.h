// Rules that a request sets for its answer: a minimum of tokens, no end token, a budget for thoughts.
// All act on the target's logits, so a draft changes no text.
#pragma once

#include "abi/llama-spec.h"

#include "llama.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace llama_spec {

// Finds which tokens of an answer belong to a thought. A grammar that waits for its trigger does not see them, since a
// thought may mention a call without making one. The search is in the text, as models can write a tag with different
// tokens.
struct thoughts {
    std::string              start;
    std::vector<std::string> ends;
    bool                     is_open = false;

    thoughts() = default;
    explicit thoughts(const llama_spec_sampler_params & p)
        : start(p.thought_start), ends(p.thought_ends, p.thought_ends + p.n_thought_ends), is_open(p.thought_is_open) {}

    // Returns the tokens to show to the grammar after committing `id`, whose text is `piece`: none within a thought.
    // Tokens that end a thought are shown, since in some templates a call ends the thought.
    std::vector<int32_t> shown(int32_t id, const std::string & piece) {
        if (start.empty()) {
            return { id };
        }
        const bool was_open = is_open;
        size_t at_end = std::string::npos;   // position in `text` of the tag that ended a thought
        text += piece;
        recent.emplace_back(id, piece.size());
        for (size_t at = n_done;;) {
            size_t n = 0;
            const size_t found = is_open ? first_end(at, n) : text.find(start, at);
            if (found == std::string::npos) {
                break;
            }
            at_end  = is_open ? found : std::string::npos;
            at      = found + (is_open ? n : start.size());
            is_open = !is_open;
            n_done  = at;
        }
        std::vector<int32_t> out;
        if (!is_open && at_end != std::string::npos) {
            size_t begin = 0;
            for (const auto & [one, n_bytes] : recent) {
                if (begin + n_bytes > at_end) {
                    out.push_back(one);
                }
                begin += n_bytes;
            }
        } else if (!was_open) {
            out.push_back(id);
        }
        forget();
        return out;
    }

private:
    size_t first_end(size_t at, size_t & n) const {
        size_t best = std::string::npos;
        for (const auto & end : ends) {
            const size_t found = end.empty() ? std::string::npos : text.find(end, at);
            if (found < best) {
                best = found;
                n    = end.size();
            }
        }
        return best;
    }

    // Keeps only the text in which a tag could still begin.
    void forget() {
        size_t longest = start.size();
        for (const auto & end : ends) {
            longest = std::max(longest, end.size());
        }
        const size_t keep = std::min(longest - 1, text.size() - std::min(n_done, text.size()));
        size_t n_tokens = 0, n_gone = 0;
        while (n_tokens < recent.size() && n_gone + recent[n_tokens].second <= text.size() - keep) {
            n_gone += recent[n_tokens++].second;
        }
        recent.erase(recent.begin(), recent.begin() + (std::ptrdiff_t) n_tokens);
        // A token's text is kept whole; n_done excludes the part that tags have used.
        text.erase(0, n_gone);
        n_done = n_done > n_gone ? n_done - n_gone : 0;
    }

    std::string text;                               // the text of `recent`
    size_t      n_done = 0;                         // bytes of it that tags have used
    std::vector<std::pair<int32_t, size_t>> recent; // tokens, each with its number of bytes
};

// Says whether these parameters set any rule.
bool asks_of_answer(const llama_spec_sampler_params & params);

// The ids that end a generation, sorted.
std::vector<int32_t> end_ids(const llama_vocab * vocab);

// `ends` are end_ids().
class answer_rules {
  public:
    answer_rules() = default;
    // Throws if an id is outside the vocabulary.
    answer_rules(const llama_spec_sampler_params & params, const llama_vocab * vocab, const std::vector<int32_t> & ends);

    // The forced next token, which closes a thought; negative if the next token is not forced.
    int32_t forced() const { return force_at_ < 0 ? -1 : thought_close_[(size_t) force_at_]; }
    // The ids that may not follow now, sorted: those that would end the text.
    const std::vector<int32_t> & forbidden() const;
    void accept(int32_t id);
    // A thought lasts until its forced end is complete.
    bool is_thinking() const { return thoughts_.is_open || force_at_ >= 0; }

  private:
    void count_thought(int32_t id);

    const llama_vocab * vocab_ = nullptr;
    int64_t min_tokens_  = 0, n_generated_ = 0;
    bool    ignore_ends_ = false;
    std::vector<int32_t> ends_;     // ids that end a generation, sorted
    std::vector<int32_t> early_;    // ids that are forbidden before min_tokens, sorted
    thoughts thoughts_;
    int32_t thought_budget_ = -1;
    int32_t n_thought_ = 0;         // tokens inside thoughts
    std::vector<int32_t> thought_close_;
    int32_t force_at_  = -1;        // index in thought_close_ of the next token; negative while the budget lasts
    std::vector<int32_t> recent_;   // the last tokens of the open thought
};

} // namespace llama_spec
