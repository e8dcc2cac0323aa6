// What a request asks of its answer beside a distribution: not to end before some tokens or by an end token at all, words that
// may not come, and how long a thought may be. All of it acts on the target's logits, so that a draft changes no text.
#pragma once

#include "abi/llama-spec.h"

#include "llama.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace llama_spec {

// Whether these parameters ask for anything of the rules.
bool asks_of_answer(const llama_spec_sampler_params & params);

// What is known of a vocabulary's tokens, made once for each model that needs it.
struct token_pieces {
    std::vector<std::string> text;      // as a reader sees them: of a control token none
    std::vector<int32_t>     by_text;   // ids, sorted by their text
    std::vector<int32_t>     ends;      // ids of the tokens that end a generation
    explicit token_pieces(const llama_vocab * vocab);
};

// `pieces` has to outlive it.
class answer_rules {
  public:
    answer_rules() = default;
    // Throws where an id is outside the vocabulary, or a text is empty.
    answer_rules(const llama_spec_sampler_params & params, const llama_vocab * vocab, const token_pieces & pieces);

    // The one token that has to come next, the end of a thought; negative where there is a choice.
    int32_t forced() const;
    // Whether anything is forbidden now; without `ends`: beside the tokens that end the text.
    bool any_forbidden(bool ends) const;
    bool forbids_ends() const;
    bool forbids(int32_t id, bool ends) const;
    // Sets the logits of what is forbidden to minus infinity; `logit(id)` gives a reference.
    template <typename F> void forbid(F && logit, bool ends) const {
        for (const int32_t id : forbidden(ends)) {
            logit(id) = -__builtin_inff();
        }
    }
    void accept(int32_t id);
    bool is_thinking() const { return thinking_; }
    // Back to the beginning of the answer.
    void reset();

  private:
    struct tables;
    std::vector<int32_t> forbidden(bool ends) const;
    bool completes_word(const std::string & piece) const;
    void follow_thought(int32_t id);
    void begin_thought();

    std::shared_ptr<const tables> tables_;  // null where nothing is asked
    int64_t n_generated_ = 0;
    std::string text_;      // the end of the answer's text, as far as a forbidden word could have begun in it
    std::string raw_;       // the same with the names of control tokens, for the marks of thoughts
    bool    thinking_  = false;
    int32_t n_thought_ = 0;     // tokens inside of thoughts
    int32_t force_at_  = -1;    // which of the forced tokens comes next; negative while there is room
    std::vector<int32_t> recent_;      // the last tokens of the thought that is open
};

} // namespace llama_spec
