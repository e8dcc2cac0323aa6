// Raw decoding without any code of ours: the reference for the loop's overhead.

#include "abi/handles.h"

#include <algorithm>
#include <string>
#include <vector>

using namespace llama_spec;

namespace {

// Checks everything that the engine would refuse or assert on.
void check(const context_state & state, int32_t n_seq, const int32_t * pos, const int32_t * ids, int32_t n_steps) {
    const llama_model * model = state.model->model;
    llama_memory_t memory = llama_get_memory(state.ctx);
    if (memory == nullptr || llama_model_has_encoder(model) || state.draft) {
        fail(LLAMA_SPEC_UNSUPPORTED, "this model does not decode ids alone, one after the other");
    }
    require(pos != nullptr && ids != nullptr && n_steps > 0, "positions, ids and a positive number of steps are needed");
    const int32_t n_seq_max = (int32_t) llama_n_seq_max(state.ctx);
    const int32_t n_ctx_seq = std::min((int32_t) llama_n_ctx_seq(state.ctx), state.n_positions);
    const int32_t n_most = std::min({ n_seq_max, (int32_t) llama_n_batch(state.ctx), state.n_outputs_max });
    if (n_seq < 1 || n_seq > n_most) {
        fail(LLAMA_SPEC_ARGUMENT, "n_seq = " + std::to_string(n_seq) + " is outside 1 .. " + std::to_string(n_most) +
                ", what n_seq_max, n_batch and n_outputs_max allow");
    }
    const bool is_shared = llama_n_ctx_seq(state.ctx) == llama_n_ctx(state.ctx) && n_seq_max > 1;
    int64_t n_cells = 0;
    for (int32_t s = 0; s < n_seq; ++s) {
        const std::string of = " of sequence " + std::to_string(s);
        if (ids[s] < 0 || ids[s] >= state.model->n_vocab()) {
            fail(LLAMA_SPEC_ARGUMENT, "id " + std::to_string(ids[s]) + of + " is outside 0 .. " +
                    std::to_string(state.model->n_vocab() - 1));
        }
        const int32_t next = llama_memory_seq_pos_max(memory, s) + 1;
        if (pos[s] != next) {
            fail(LLAMA_SPEC_ARGUMENT, "position " + std::to_string(pos[s]) + of + " does not follow what it holds: " +
                    std::to_string(next) + " is next");
        }
        n_cells += (int64_t) pos[s] + n_steps;
        if ((int64_t) pos[s] + n_steps > n_ctx_seq || (is_shared && n_cells > n_ctx_seq)) {
            fail(LLAMA_SPEC_FULL, std::to_string(n_steps) + " steps from position " + std::to_string(pos[s]) + of +
                    " do not fit a context of " + std::to_string(n_ctx_seq) + " tokens");
        }
    }
}

int32_t likeliest(const float * logits, int32_t n_vocab) {
    int32_t best = 0;
    for (int32_t k = 1; k < n_vocab; ++k) {
        best = logits[k] > logits[best] ? k : best;
    }
    return best;
}

} // namespace

int llama_spec_baseline_decode(llama_spec_context * ctx, int32_t n_seq, const int32_t * pos0, int32_t * ids,
                               int32_t n_steps, double * seconds) {
    return guarded([&] {
        context_call call(ctx);
        context_state & state = call.state;
        require(seconds != nullptr, "there is no place for the seconds");
        check(state, n_seq, pos0, ids, n_steps);
        const int32_t n_vocab = state.model->n_vocab();
        std::vector<int32_t> pos(pos0, pos0 + n_seq), ones((size_t) n_seq, 1), seqs((size_t) n_seq);
        std::vector<int32_t *> seq_ptrs;
        std::vector<int8_t> outputs((size_t) n_seq, 1);
        for (int32_t s = 0; s < n_seq; ++s) {
            seqs[(size_t) s] = s;
            seq_ptrs.push_back(&seqs[(size_t) s]);
        }
        llama_batch batch = { n_seq, nullptr, nullptr, pos.data(), ones.data(), seq_ptrs.data(), outputs.data() };
        // The first step discards the snapshots of a recurrent state.
        std::fill(state.n_undo.begin(), state.n_undo.end(), 0);
        state.n_rows = 0;
        const int64_t start = ggml_time_us();
        for (int32_t i = 0; i < n_steps; ++i, ids += n_seq) {
            batch.token = ids;
            int32_t rc = 0;
            try {
                rc = llama_decode(state.ctx, batch);
            } catch (...) {
                poison(state);
                throw;
            }
            if (rc != 0) {
                fail(rc == 2 ? LLAMA_SPEC_CANCELLED : rc == 1 ? LLAMA_SPEC_FULL : LLAMA_SPEC_ENGINE,
                    "the engine gave " + std::to_string(rc) + " at step " + std::to_string(i));
            }
            for (int32_t s = 0; s < n_seq; ++s) {
                ids[n_seq + s] = likeliest(llama_get_logits_ith(state.ctx, s), n_vocab);
                ++pos[(size_t) s];
            }
        }
        *seconds = (double) (ggml_time_us() - start) * 1e-6;
        state.n_rows     = n_seq;
        state.has_logits = true;
    });
}
