#include "abi/handles.h"
#include "base/model_facts.h"
#include "hooks/snapshots.h"
#include "hooks/state_copies.h"
#include "hooks/whole_windows.h"

#include "llama-context.h"
#include "llama-ext.h"
#include "llama-memory-recurrent.h"
#include "llama-memory.h"

#include <algorithm>
#include <exception>
#include <string>

using namespace llama_spec;

namespace {

llama_memory_t memory_of(const context_state & state) {
    llama_memory_t memory = llama_get_memory(state.ctx);
    if (memory == nullptr) {
        fail(LLAMA_SPEC_UNSUPPORTED, std::string("architecture '") + llama_spec_arch_name(state.model->model) +
                "' keeps no memory of past tokens: it is not a model that generates text");
    }
    return memory;
}

void check_seq(const context_state & state, int32_t seq) {
    const int32_t n = (int32_t) llama_n_seq_max(state.ctx);
    if (seq < 0 || seq >= n) {
        fail(LLAMA_SPEC_ARGUMENT, "sequence " + std::to_string(seq) + " is outside 0 .. " + std::to_string(n - 1));
    }
}

// A recurrent state can lose everything, or as many of its last tokens as it has snapshots. The engine accepts other
// ranges too, and leaves the state unchanged.
bool can_remove(const context_state & state, int32_t seq, int32_t p0, int32_t p1, int32_t last) {
    if (state.n_undo.empty() || p0 > last || (p1 >= 0 && p1 <= p0)) {
        return true;
    }
    const bool is_tail = p1 < 0 || p1 > last;
    return is_tail && (p0 <= 0 || last - p0 + 1 <= state.n_undo[(size_t) seq]);
}

void forget_snapshots(context_state & state, int32_t seq) {
    if (!state.n_undo.empty()) {
        state.n_undo[(size_t) seq] = 0;
        state.n_undone[(size_t) seq] = state.states != nullptr ? state.states->rs_idx[(size_t) seq] : 0;
    }
}

// After the removal of positions from p0 on, the snapshots before p0 remain.
void note_rollback(context_state & state, int32_t seq, int32_t p0, int32_t last) {
    const bool is_undone = !state.n_undo.empty() && state.states != nullptr && p0 > 0;
    const int32_t n_left = is_undone ? state.n_undo[(size_t) seq] - (last - p0 + 1) : 0;
    forget_snapshots(state, seq);
    if (is_undone) {
        state.n_undo[(size_t) seq] = n_left;
    }
}

llama_state_seq_flags state_flags(const context_state & state, bool partial) {
    return partial ? LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY : state.keeps_windows ? STATE_WHOLE_WINDOWS : 0;
}

} // namespace

int llama_spec_memory_clear(llama_spec_context * ctx) {
    return guarded_call(ctx, [&](context_state & state) {
        llama_memory_clear(memory_of(state), false);
        std::fill(state.n_undo.begin(), state.n_undo.end(), 0);
        std::fill(state.n_undone.begin(), state.n_undone.end(), 0);
    });
}

int llama_spec_seq_rm(llama_spec_context * ctx, int32_t seq, int32_t p0, int32_t p1) {
    return guarded_call(ctx, [&](context_state & state) {
        check_seq(state, seq);
        llama_memory_t memory = memory_of(state);
        const int32_t last = llama_memory_seq_pos_max(memory, seq);
        if (p0 <= 0 && p1 > last) {
            p1 = -1;    // the whole sequence: the engine then also resets its snapshot bookkeeping
        }
        const auto remove = [&] {
            const bool is_tail = p0 > 0 && p0 <= last && (p1 < 0 || p1 > last);
            return is_tail ? roll_back(memory, state.states, seq, p0) : llama_memory_seq_rm(memory, seq, p0, p1);
        };
        if (!can_remove(state, seq, p0, p1, last) || !remove()) {
            fail(LLAMA_SPEC_UNSUPPORTED, "the engine cannot remove positions " + std::to_string(p0) + " .. " +
                    std::to_string(p1 < 0 ? last : p1 - 1) + " of sequence " + std::to_string(seq) + " alone; clear it");
        }
        if (p0 <= last) {
            note_rollback(state, seq, p0, last);
        }
    });
}

int llama_spec_seq_cp(llama_spec_context * ctx, int32_t from, int32_t to) {
    return guarded_call(ctx, [&](context_state & state) {
        check_seq(state, from);
        check_seq(state, to);
        llama_memory_t memory = memory_of(state);
        llama_memory_seq_cp(memory, from, to, 0, -1);
        // With a stream for each sequence, the engine defers copying keys and values to the next decode. Until then a
        // save, a restore or a removal would see the wrong ones.
        state.ctx->memory_update(false);
        if (state.states != nullptr && from != to) {
            copy_depth(state.states, from, to);
        } else if (from != to) {
            llama_memory_recurrent * cells = recurrent_part(memory);     // an MTP head's memory
            if (cells != nullptr) {
                give_own_cell(*cells, to);
            }
        }
        // Both sequences share a cell now, and a shared cell cannot roll back for one of them.
        forget_snapshots(state, from);
        forget_snapshots(state, to);
    });
}

int llama_spec_seq_positions(llama_spec_context * ctx, int32_t seq, int32_t * first, int32_t * last) {
    return guarded_call(ctx, [&](context_state & state) {
        check_seq(state, seq);
        *first = llama_memory_seq_pos_min(memory_of(state), seq);
        *last  = llama_memory_seq_pos_max(memory_of(state), seq);
    });
}

int32_t llama_spec_state_version(void) {
    return LLAMA_STATE_SEQ_VERSION;
}

int llama_spec_state_size(llama_spec_context * ctx, int32_t seq, bool partial, size_t * out) {
    return guarded_call(ctx, [&](context_state & state) {
        check_seq(state, seq);
        *out = llama_state_seq_get_size_ext(state.ctx, seq, state_flags(state, partial));
    });
}

int llama_spec_state_get(llama_spec_context * ctx, int32_t seq, bool partial, int32_t back, uint8_t * data, size_t size,
                         size_t * written) {
    return guarded_call(ctx, [&](context_state & state) {
        check_seq(state, seq);
        if (back != 0) {
            require(partial, "only a partial state can be read as of an earlier token");
            if (state.states == nullptr || back > state.n_undo[(size_t) seq]) {
                fail(LLAMA_SPEC_UNSUPPORTED, "there is no snapshot of " + std::to_string(back) + " tokens ago");
            }
        }
        ++state.n_host_copies;
        const earlier_state earlier(state.states, seq, back);
        take_failure();
        *written = llama_state_seq_get_data_ext(state.ctx, data, size, seq, state_flags(state, partial));
        if (const auto failure = take_failure()) {
            std::rethrow_exception(failure);
        }
        if (*written == 0) {
            fail(LLAMA_SPEC_ENGINE, "the state of the sequence could not be read");
        }
    });
}

int llama_spec_state_set(llama_spec_context * ctx, int32_t seq, bool partial, const uint8_t * data, size_t size) {
    return guarded_call(ctx, [&](context_state & state) {
        check_seq(state, seq);
        ++state.n_host_copies;
        take_failure();
        const size_t n_read = llama_state_seq_set_data_ext(state.ctx, data, size, seq, state_flags(state, partial));
        const auto failure = take_failure();
        forget_snapshots(state, seq);
        if (n_read == 0 || failure) {
            llama_memory_seq_rm(memory_of(state), seq, -1, -1);
        }
        if (failure) {
            std::rethrow_exception(failure);
        }
        if (n_read == 0) {
            fail(LLAMA_SPEC_ARGUMENT, "the state does not fit this context; the sequence is empty now: decode its text again");
        }
    });
}
