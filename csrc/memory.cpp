#include "handles.h"

#include <string>

using namespace llama_spec;

namespace {

llama_memory_t memory_of(const context_state & state) {
    llama_memory_t memory = llama_get_memory(state.ctx);
    if (memory == nullptr) {
        fail(LLAMA_SPEC_UNSUPPORTED, "this model keeps no memory of past tokens");
    }
    return memory;
}

void check_seq(const context_state & state, int32_t seq) {
    const int32_t n = (int32_t) llama_n_seq_max(state.ctx);
    if (seq < 0 || seq >= n) {
        fail(LLAMA_SPEC_ARGUMENT, "sequence " + std::to_string(seq) + " is outside 0 .. " + std::to_string(n - 1));
    }
}

} // namespace

int llama_spec_memory_clear(llama_spec_context * ctx) {
    return guarded([&] {
        context_call call(ctx);
        llama_memory_clear(memory_of(call.state), false);
    });
}

int llama_spec_seq_rm(llama_spec_context * ctx, int32_t seq, int32_t p0, int32_t p1) {
    return guarded([&] {
        context_call call(ctx);
        check_seq(call.state, seq);
        if (!llama_memory_seq_rm(memory_of(call.state), seq, p0, p1)) {
            fail(LLAMA_SPEC_UNSUPPORTED, "the engine cannot remove positions " + std::to_string(p0) + " .. " +
                    std::to_string(p1) + " of sequence " + std::to_string(seq) + " alone");
        }
    });
}

int llama_spec_seq_cp(llama_spec_context * ctx, int32_t from, int32_t to, int32_t p0, int32_t p1) {
    return guarded([&] {
        context_call call(ctx);
        check_seq(call.state, from);
        check_seq(call.state, to);
        llama_memory_seq_cp(memory_of(call.state), from, to, p0, p1);
    });
}

int llama_spec_seq_keep(llama_spec_context * ctx, int32_t seq) {
    return guarded([&] {
        context_call call(ctx);
        check_seq(call.state, seq);
        llama_memory_seq_keep(memory_of(call.state), seq);
    });
}

int llama_spec_seq_positions(llama_spec_context * ctx, int32_t seq, int32_t * first, int32_t * last) {
    return guarded([&] {
        context_call call(ctx);
        check_seq(call.state, seq);
        *first = llama_memory_seq_pos_min(memory_of(call.state), seq);
        *last  = llama_memory_seq_pos_max(memory_of(call.state), seq);
    });
}

int llama_spec_state_size(llama_spec_context * ctx, int32_t seq, size_t * out) {
    return guarded([&] {
        context_call call(ctx);
        check_seq(call.state, seq);
        *out = llama_state_seq_get_size(call.state.ctx, seq);
    });
}

int llama_spec_state_get(llama_spec_context * ctx, int32_t seq, uint8_t * data, size_t size, size_t * written) {
    return guarded([&] {
        context_call call(ctx);
        check_seq(call.state, seq);
        *written = llama_state_seq_get_data(call.state.ctx, data, size, seq);
        if (*written == 0) {
            fail(LLAMA_SPEC_ENGINE, "the state of the sequence could not be read");
        }
    });
}

int llama_spec_state_set(llama_spec_context * ctx, int32_t seq, const uint8_t * data, size_t size) {
    return guarded([&] {
        context_call call(ctx);
        check_seq(call.state, seq);
        if (llama_state_seq_set_data(call.state.ctx, data, size, seq) == 0) {
            llama_memory_seq_rm(memory_of(call.state), seq, -1, -1);
            fail(LLAMA_SPEC_ARGUMENT, "the state does not fit this context; the sequence is empty now");
        }
    });
}
