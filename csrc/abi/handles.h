// The contents of the opaque handles. Shared ownership lets callers free them in any order.
#pragma once

#include "abi/answer_rules.h"
#include "abi/llama-spec.h"
#include "base/draft_output.h"
#include "base/guard.h"
#include "checks/token_chars.h"
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

namespace llama_spec {

struct model_state {
    llama_model * model = nullptr;
    std::vector<float> tensor_split;
    bool vocab_only = false;
    home_process home;
    std::vector<ggml_backend_ptr> servers;  // connections to them
    // Made for the first grammar that masks its vocabulary.
    std::once_flag chars_made;
    std::unique_ptr<token_chars> chars;
    // Found for the first request with rules for its answer.
    std::once_flag ends_found;
    std::vector<int32_t> ends;
    ~model_state() {
        if (model != nullptr) {
            llama_model_free(model);
        }
    }
    const llama_vocab * vocab() const { return llama_model_get_vocab(model); }
    int32_t n_vocab() const { return llama_vocab_n_tokens(vocab()); }
};

// Shared by a target's context and its draft contexts: they never compute at the same time, so one thread pool serves
// them all.
struct compute_state {
    std::atomic<bool> busy{ false };
    ggml_threadpool_t pool      = nullptr;
    int32_t           n_threads = 0;
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
    std::string lost;       // the server whose loss poisoned the context
    int32_t n_rows   = 0;   // tokens of the last batch
    int32_t n_row_inp = 0;  // the width of a batch row
    bool    has_logits = true;  // whether the last batch has logits
    int32_t n_pos_per_row  = 1;     // positions that the engine reads for a token without an id
    int32_t n_positions    = 0;     // size of the model's position table; a huge number without one
    int32_t n_outputs_max  = 0;     // maximum number of tokens with logits in a batch
    bool    outputs_all    = false; // the engine gives every token of a batch an output
    std::unique_ptr<draft_context> draft;   // set for a draft model
    std::unique_ptr<draft_output> output;   // set for a draft that chooses from a part of the vocabulary
    // For each sequence, how many of its last tokens a recurrent state can roll back; empty if the model has no such
    // state.
    std::vector<int32_t> n_undo;
    // How many tokens were rolled back since the last decode, by the engine's count.
    std::vector<uint32_t> n_undone;
    llama_memory_recurrent * states = nullptr;  // the recurrent part of the memory; NULL if the engine keeps none apart
    bool keeps_windows = true;                  // sliding-window layers keep all positions
    uint64_t n_host_copies = 0;                 // copies of states by llama_spec_state_get() and _set()
    // Buffers that decode reuses, so that a round allocates nothing.
    std::vector<llama_seq_id *> seq_ptrs;
    std::vector<int32_t>        ones;
    std::vector<int32_t>        seq_counts;
    std::vector<int32_t>        positions;
    ~context_state();
};

// Returns the context of a handle, after checking that this process may use it.
context_state & open_context(llama_spec_context * ctx);

// Marks the context after a failure in mid-graph.
void poison(context_state & state);

// Held by a call that must not run at the same time as another on this context or its relatives.
struct context_call {
    context_state & state;
    in_use          lock;
    in_use          mark;   // for this context alone: freeing it only requires that no call is inside it
    explicit context_call(llama_spec_context * ctx);
};

// guarded(), for a call on a context.
template <typename F> int guarded_call(llama_spec_context * ctx, F && body) {
    return guarded([&] {
        context_call call(ctx);
        body(call.state);
    });
}

// llama_spec_decode() for an open context. The results are valid after synchronisation.
void decode(context_state & state, const llama_spec_batch & batch, bool encode);

// The logits of token i of the last batch.
const float * logits_of(const context_state & state, int32_t i);

} // namespace llama_spec

struct llama_spec_model {
    std::shared_ptr<llama_spec::model_state> state;
};

struct llama_spec_context {
    std::shared_ptr<llama_spec::context_state> state;
};
