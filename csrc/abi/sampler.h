// The contents of the opaque sampler: a chain of the engine's samplers, and what comes before it and in its place.
#pragma once

#include "abi/answer_rules.h"
#include "abi/handles.h"
#include "checks/grammar_check.h"

#include <algorithm>
#include <deque>
#include <string>
#include <unordered_map>
#include <utility>

struct llama_grammar;

namespace llama_spec {

using grammar_ptr = std::unique_ptr<llama_grammar, void (*)(llama_grammar *)>;

// Replaces llama_grammar_clone_impl(), which compares each stack position with all elements of all rules: that takes
// minutes if a grammar can begin in tens of thousands of ways. This copy looks positions up in sorted rules. Free it
// with llama_grammar_free_impl().
llama_grammar * copy_grammar(const llama_grammar & from);

// Finds which tokens of an answer belong to a thought. A grammar that waits for its trigger does not see them, since a
// thought may mention a call without making one. The search is in the text, as models can write a tag with different
// tokens.
struct thoughts {
    std::string              start;
    std::vector<std::string> ends;
    bool                     is_open = false;

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

// Changes of single logits: a request's biases, and penalties for the last tokens. These concern few tokens, so only
// their logits are read. The engine's penalty sampler looks up every token of the vocabulary: 1.3 ms for a row of
// 151,936.
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

  private:
    void penalise(float & logit, int32_t count) const;

    std::vector<std::pair<int32_t, float>> biases_;
    size_t last_n_ = 0;     // 0 without penalties
    float  repeat_ = 1.0f, frequency_ = 0.0f, presence_ = 0.0f;
    std::deque<int32_t> recent_;
    std::unordered_map<int32_t, int32_t> counts_;   // how often each token is in recent_
};

// Draws with noise that a draft can compute in advance: the choice is the id with the largest logit + noise. With
// Gumbel noise this samples from the softmax of the logits. The noise depends only on the seed, the token's index in
// the answer, and the id. So a draft model with the same noise often draws what its target draws (arXiv 2408.07978),
// and the target draws the same with any draft or none.
struct noise_draw {
    bool     is_on = false;
    uint32_t seed  = 0;
    uint64_t place = 0;     // tokens generated so far

    // The index of the drawn candidate; of equal ones, that with the lowest id; -1 if none has a chance. The logits
    // come after all cuts and the temperature. A NaN is chosen, so that the caller reports it.
    int64_t choose(const llama_token_data * candidates, size_t n) const;
};

} // namespace llama_spec

struct llama_spec_sampler {
    std::shared_ptr<llama_spec::model_state> model;
    llama_sampler * chain   = nullptr;
    llama_sampler * grammar = nullptr;
    // A copy of the grammar, from which forced text is read; the engine does not expose the sampler's own.
    llama_spec::grammar_ptr shadow{ nullptr, nullptr };
    std::shared_ptr<const std::vector<bool>> hidden;    // tokens that the grammar must not match
    bool   is_lazy = false;     // the grammar waits for a trigger
    size_t n_unmatched = 0;     // generated bytes in which triggers were searched
    llama_spec::thoughts thoughts;  // tokens in thoughts are not shown to a grammar that waits
    // With thoughts: a copy of the grammar until its trigger. The engine does not expose whether the sampler's own
    // still waits.
    llama_spec::grammar_ptr waiting{ nullptr, nullptr };
    bool is_argmax = false;     // greedy with nothing but `changes` before it: no candidate list is needed
    int32_t n_top = 0;          // how many candidates a chain that begins with top_k reads; 0 if it reads all
    llama_spec::logit_changes changes;
    double grammar_seconds_left = llama_spec::GRAMMAR_BOUNDS.seconds;
    llama_spec::answer_rules rules;
    bool grammar_skips_thoughts = false;    // the grammar ignores thoughts and their tags
    std::vector<llama_token_data> candidates;
    size_t n_left = 0;          // how many candidates the chain left at its last choice; 0 if no chain chose
    llama_spec::noise_draw noise;    // replaces the chain's last sampler, if it is on
    bool has_draw = false;      // the chain ends with a draw by probability, and no grammar has to allow the result
    std::vector<float> row;     // logits with the request's changes, and without the tokens that the grammar refused
    std::vector<float> room;    // scratch of top_logits()
    std::atomic<bool> busy{ false };
    llama_spec::home_process home;
    ~llama_spec_sampler() {
        if (chain != nullptr) {
            llama_sampler_free(chain);
        }
        if (grammar != nullptr) {
            llama_sampler_free(grammar);
        }
    }
};

namespace llama_spec {

// guarded(), for a call on a sampler; fails if it belongs to another process.
template <typename F> int guarded_call(llama_spec_sampler * sampler, F && body) {
    return guarded([&] {
        sampler->home.check("this sampler was made");
        in_use lock(sampler->busy, "the sampler");
        body(*sampler);
    });
}

// Says whether the grammar ignores the next token.
inline bool skips_grammar(const llama_spec_sampler & s) {
    return s.grammar_skips_thoughts && s.rules.is_thinking();
}

} // namespace llama_spec
