// Rules that a request sets for its answer: a minimum of tokens, no end token, forbidden words, a budget for thoughts.
// All act on the target's logits, so a draft changes no text.
#pragma once

#include "abi/llama-spec.h"

#include "llama.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace llama_spec {

// Says whether these parameters set any rule.
bool asks_of_answer(const llama_spec_sampler_params & params);

// Facts about a vocabulary's tokens, computed once for each model that needs them.
struct token_pieces {
    std::vector<std::string> text;      // as a reader sees them; empty for control tokens
    std::vector<int32_t>     by_text;   // ids, sorted by their text
    std::vector<int32_t>     ends;      // ids of the tokens that end a generation
    explicit token_pieces(const llama_vocab * vocab);
};

// `pieces` must outlive it.
class answer_rules {
  public:
    answer_rules() = default;
    // Throws if an id is outside the vocabulary, or a text is empty.
    answer_rules(const llama_spec_sampler_params & params, const llama_vocab * vocab, const token_pieces & pieces);

    // The forced next token, which closes a thought; negative if the next token is not forced.
    int32_t forced() const;
    // Says whether anything is forbidden now. With ends = false, it ignores the rules for end tokens.
    bool any_forbidden(bool ends) const;
    bool forbids_ends() const;
    bool forbids(int32_t id, bool ends) const;
    // Sets the logits of forbidden tokens to minus infinity; `logit(id)` returns a reference.
    template <typename F> void forbid(F && logit, bool ends) const {
        for (const int32_t id : forbidden(ends)) {
            logit(id) = -__builtin_inff();
        }
    }
    void accept(int32_t id);
    bool is_thinking() const { return thinking_; }

  private:
    struct tables;
    std::vector<int32_t> forbidden(bool ends) const;
    bool completes_word(const std::string & piece) const;
    void follow_thought(int32_t id);
    void begin_thought();

    std::shared_ptr<const tables> tables_;  // null if no rule is set
    int64_t n_generated_ = 0;
    std::string text_;      // the end of the answer's text, from which a forbidden word could still begin
    std::string raw_;       // the same with the names of control tokens, to find the tags of thoughts
    bool    thinking_  = false;
    int32_t n_thought_ = 0;     // tokens inside thoughts
    int32_t force_at_  = -1;    // index of the next forced token; negative while the budget lasts
    std::vector<int32_t> recent_;      // the last tokens of the open thought
};

} // namespace llama_spec
