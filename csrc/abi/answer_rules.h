// Rules that a request sets for its answer: a minimum of tokens, no end token, a budget for thoughts.
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

// The ids that end a generation, sorted.
std::vector<int32_t> end_ids(const llama_vocab * vocab);

// `ends` are end_ids().
class answer_rules {
  public:
    answer_rules() = default;
    // Throws if an id is outside the vocabulary.
    answer_rules(const llama_spec_sampler_params & params, const llama_vocab * vocab, const std::vector<int32_t> & ends);

    // The forced next token, which closes a thought; negative if the next token is not forced.
    int32_t forced() const;
    // Says whether any token is forbidden now: one that ends the text.
    bool forbids_ends() const;
    bool forbids(int32_t id) const;
    // Sets the logits of forbidden tokens to minus infinity; `logit(id)` returns a reference.
    template <typename F> void forbid(F && logit) const {
        for (const int32_t id : forbidden()) {
            logit(id) = -__builtin_inff();
        }
    }
    void accept(int32_t id);
    bool is_thinking() const { return thinking_; }

  private:
    struct tables;
    std::vector<int32_t> forbidden() const;
    void follow_thought(int32_t id);
    void begin_thought();

    std::shared_ptr<const tables> tables_;  // null if no rule is set
    int64_t n_generated_ = 0;
    std::string raw_;       // the end of the answer with the names of control tokens, to find the tags of thoughts
    bool    thinking_  = false;
    int32_t n_thought_ = 0;     // tokens inside thoughts
    int32_t force_at_  = -1;    // index of the next forced token; negative while the budget lasts
    std::vector<int32_t> recent_;      // the last tokens of the open thought
};

} // namespace llama_spec
