// What the opaque handles hold. Shared ownership lets them be freed in any order.
#pragma once

#include "abi/answer_rules.h"
#include "abi/logit_changes.h"
#include "abi/llama-spec.h"
#include "abi/shared_noise.h"
#include "abi/thoughts.h"
#include "base/draft_output.h"
#include "base/guard.h"
#include "checks/grammar_check.h"
#include "checks/token_chars.h"
#include "transfers/transfers.h"
#include "drafts/draft_kind.h"

#include "ggml-cpp.h"
#include "ggml-cpu.h"
#include "llama.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

class llama_memory_recurrent;
struct llama_grammar;

namespace llama_spec {

struct model_state {
    llama_model * model = nullptr;
    std::vector<float> tensor_split;
    bool vocab_only = false;
    home_process home;
    std::vector<ggml_backend_ptr> servers;  // their connections
    // Made by the first grammar that masks its vocabulary.
    std::once_flag chars_made;
    std::unique_ptr<token_chars> chars;
    // Made by the first request with rules for its answer.
    std::once_flag pieces_made;
    std::unique_ptr<token_pieces> pieces;
    ~model_state() {
        if (model != nullptr) {
            llama_model_free(model);
        }
    }
    const llama_vocab * vocab() const { return llama_model_get_vocab(model); }
    int32_t n_vocab() const { return llama_vocab_n_tokens(vocab()); }
};

// What a target's context and its draft contexts have in common: they never compute at the same time,
// so one thread pool serves them all.
struct compute_state {
    std::atomic<bool> busy{ false };
    ggml_threadpool_t pool      = nullptr;
    int32_t           n_threads = 0;
    transfers         crossed;      // of all of them
    ~compute_state() {
        if (pool != nullptr) {
            ggml_threadpool_free(pool);
        }
    }
};

struct context_state {
    std::shared_ptr<model_state>   model;
    std::shared_ptr<context_state> target;
    std::shared_ptr<compute_state> compute;
    llama_context *       ctx = nullptr;
    std::vector<int32_t>  layers;
    std::atomic<bool>     cancelled{ false };
    std::atomic<bool>     in_call{ false };
    home_process home;
    bool    poisoned = false;
    std::string lost;       // the server by whose loss it was
    int32_t n_rows   = 0;   // tokens of the last batch
    int32_t n_row_inp = 0;  // the width of a batch's rows
    bool    has_logits = true;  // of the last batch
    int32_t n_pos_per_row  = 1;     // positions that the engine reads of a token without an id
    int32_t n_positions    = 0;     // of the model's table of them; a great number if it has none
    int32_t n_outputs_max  = 0;     // tokens of a batch that may have logits
    bool    outputs_all    = false; // the engine then gives every token of a batch an output
    std::unique_ptr<draft_context> draft;   // of a draft model
    std::unique_ptr<draft_output> output;   // of one that chooses among a part of the vocabulary
    // Per sequence, how many of its last tokens can be taken back out of a recurrent state; empty where
    // the model has none.
    std::vector<int32_t> n_undo;
    // How many were taken back since its last decode, as the engine notes it.
    std::vector<uint32_t> n_undone;
    llama_memory_recurrent * states = nullptr;  // the recurrent part of the memory, where the engine has it apart
    transfers crossed;
    bool keeps_windows = true;                  // sliding-window layers keep all positions
    uint64_t n_host_copies = 0;                 // of states, by llama_spec_state_get() and _set()
    // Scratch that decode fills, kept so that a round allocates nothing.
    std::vector<llama_seq_id *> seq_ptrs;
    std::vector<int32_t>        ones;
    std::vector<int32_t>        seq_counts;
    std::vector<int32_t>        positions;
    ~context_state();
};

// The context of a handle, if calls in this process may use it.
context_state & open_context(llama_spec_context * ctx);

// A call has failed in mid-graph.
void poison(context_state & state);

// For a call that must not run beside another on the same context or its relatives.
struct context_call {
    context_state & state;
    in_use          lock;
    in_use          mark;   // of this context alone: freeing it asks only that nobody is inside it
    count_transfers counting;
    explicit context_call(llama_spec_context * ctx);
};

} // namespace llama_spec

struct llama_spec_model {
    std::shared_ptr<llama_spec::model_state> state;
};

struct llama_spec_context {
    std::shared_ptr<llama_spec::context_state> state;
};

struct llama_spec_sampler {
    std::shared_ptr<llama_spec::model_state> model;
    llama_sampler * chain   = nullptr;
    llama_sampler * grammar = nullptr;
    // The same grammar, of which a text that has to follow can be read; the engine keeps the sampler's to itself.
    std::unique_ptr<llama_grammar, void (*)(llama_grammar *)> shadow{ nullptr, nullptr }, shadow_begin{ nullptr, nullptr };
    std::shared_ptr<const std::vector<bool>> hidden;    // tokens that the grammar does not mean: checks/hidden_tokens.h
    bool   is_lazy = false;     // the grammar waits for a trigger
    size_t n_unmatched = 0;     // bytes generated that triggers were looked for in
    llama_spec::thoughts thoughts, thoughts_begin;  // what a grammar that waits is not shown
    // Where there are thoughts: the same grammar until it wakes. Whether the sampler's waits cannot be read.
    std::unique_ptr<llama_grammar, void (*)(llama_grammar *)> waiting{ nullptr, nullptr }, waiting_begin{ nullptr, nullptr };
    bool is_argmax = false;     // greedy, and before it only `changes`: no candidate list is needed
    int32_t n_top = 0;          // how many candidates the chain looks at, which begins with top_k; 0 where it sees all
    llama_spec::logit_changes changes;
    double grammar_seconds_left = llama_spec::GRAMMAR_BOUNDS.seconds;
    std::vector<int32_t> grammar_prefill;   // what its grammar had seen before the first token
    llama_spec::answer_rules rules;
    bool grammar_skips_thoughts = false;    // what is inside of a thought, and its marks, are none of the grammar's
    std::vector<llama_token_data> candidates;
    size_t n_left = 0;          // how many of them the chain had left when it chose last; 0 where no chain chose
    llama_spec::noise_draw noise;    // in place of the chain's last sampler, if it is on
    bool has_draw = false;      // the chain ends with a draw by the probabilities of what is left, and no grammar asks again
    std::vector<float> row;     // logits with what the request changes, and without what a grammar has refused
    std::vector<float> room;    // of top_logits()
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

// Throws unless there is a sampler that can be used.
inline llama_spec_sampler & open_sampler(llama_spec_sampler * sampler) {
    require(sampler != nullptr && sampler->chain != nullptr, "the sampler is closed");
    sampler->home.check("this sampler was made");
    return *sampler;
}

// Whether what comes now is none of the grammar's.
inline bool skips_grammar(const llama_spec_sampler & s) {
    return s.grammar_skips_thoughts && s.rules.is_thinking();
}

} // namespace llama_spec
