#include "abi/handles.h"
#include "abi/rpc.h"
#include "base/model_facts.h"
#include "hooks/snapshots.h"
#include "kernels/likeliest.h"

#include "llama-context.h"
#include "llama-ext.h"
#include "llama-memory-recurrent.h"
#include "llama-model.h"

#include <algorithm>
#include <cmath>
#include <string>

using namespace llama_spec;

namespace {

std::string at(const char * what, int64_t value, int32_t i) {
    return std::string(what) + " " + std::to_string(value) + " of token " + std::to_string(i) + " of the batch";
}

// Checks everything on which the engine would assert, or read outside an array, on one of its own threads.
void check_batch(const context_state & state, const llama_spec_batch & b) {
    const int32_t n_vocab = state.model->n_vocab();
    const int32_t n_batch = (int32_t) llama_n_batch(state.ctx);
    const int32_t n_seq_max = (int32_t) llama_n_seq_max(state.ctx);

    require(b.n_tokens > 0, "the batch is empty");
    if (b.n_tokens > n_batch) {
        fail(LLAMA_SPEC_ARGUMENT, "the batch has " + std::to_string(b.n_tokens) + " tokens, more than `n_batch=" +
                std::to_string(n_batch) + "`; split it, or open the context with a larger `n_batch`");
    }
    if (b.rows != nullptr && b.n_row != state.n_row_inp) {
        fail(LLAMA_SPEC_ARGUMENT, "the batch has rows of " + std::to_string(b.n_row) + " numbers, the model takes " +
                std::to_string(state.n_row_inp));
    }
    if (b.embd != nullptr && !state.draft) {
        fail(LLAMA_SPEC_ARGUMENT, "only a head takes embeddings beside rows");
    }
    const std::string why = state.draft ? state.draft->refuse(b) : "";
    if (!why.empty()) {
        fail(LLAMA_SPEC_ARGUMENT, why);
    }
    int32_t n_outputs = 0;
    for (int32_t i = 0; i < b.n_tokens; ++i) {
        n_outputs += state.outputs_all || b.output[i] != 0;
        if (b.ids != nullptr && (b.ids[i] < 0 || b.ids[i] >= n_vocab)) {
            fail(LLAMA_SPEC_ARGUMENT, at("id", b.ids[i], i) + " is outside 0 .. " + std::to_string(n_vocab - 1));
        }
        if (b.pos[i] < 0) {
            fail(LLAMA_SPEC_ARGUMENT, at("position", b.pos[i], i) + " is negative");
        }
        if (b.pos[i] >= state.n_positions) {
            fail(LLAMA_SPEC_ARGUMENT, at("position", b.pos[i], i) + " is outside 0 .. " + std::to_string(state.n_positions - 1) +
                    ", for which the model has embeddings");
        }
        if (b.seq[i] < 0 || b.seq[i] >= n_seq_max) {
            fail(LLAMA_SPEC_ARGUMENT, at("sequence", b.seq[i], i) + " is outside 0 .. " + std::to_string(n_seq_max - 1));
        }
    }
    if (n_outputs > state.n_outputs_max) {
        fail(LLAMA_SPEC_ARGUMENT, "the batch asks for the logits of " + std::to_string(n_outputs) + " tokens, more than `n_outputs_max=" +
                std::to_string(state.n_outputs_max) + "`; split it, or open the context with a larger `n_outputs_max`");
    }
}

// Counts the tokens of each sequence in a batch.
const std::vector<int32_t> & counted(context_state & state, const llama_spec_batch & b) {
    auto & counts = state.seq_counts;
    std::fill(counts.begin(), counts.end(), 0);
    for (int32_t i = 0; i < b.n_tokens; ++i) {
        ++counts[(size_t) b.seq[i]];
    }
    return counts;
}

// A recurrent state depends on all earlier tokens, so an empty sequence has to begin at position 0. The engine would
// begin with a state of zeros.
void check_begun(context_state & state, const llama_spec_batch & b) {
    if (state.states == nullptr) {
        return;
    }
    auto & counts = state.seq_counts;
    std::fill(counts.begin(), counts.end(), 0);
    for (int32_t i = 0; i < b.n_tokens; ++i) {
        const int32_t seq = b.seq[i];
        const bool is_first = counts[(size_t) seq]++ == 0;
        if (is_first && b.pos[i] > 0 && llama_memory_seq_pos_max(llama_get_memory(state.ctx), seq) < 0) {
            fail(LLAMA_SPEC_ARGUMENT, at("position", b.pos[i], i) + " follows nothing: sequence " + std::to_string(seq) +
                    " is empty. Decode it from position 0 on");
        }
    }
}

llama_batch engine_batch(context_state & state, const llama_spec_batch & b) {
    state.seq_ptrs.clear();
    for (int32_t i = 0; i < b.n_tokens; ++i) {
        state.seq_ptrs.push_back(const_cast<int32_t *>(b.seq) + i);
    }
    state.seq_ptrs.push_back(nullptr);

    // For a row without an id, the engine reads several positions if the model's rotation uses several. Text has the
    // same position three times, then a zero; a row of an image its place in time, its row and its column. The array
    // holds all first positions, then all second ones.
    const int32_t n_pos = b.ids == nullptr ? state.n_pos_per_row : 1;
    if (n_pos > 1) {
        state.positions.assign((size_t) n_pos * b.n_tokens, 0);
        for (int32_t k = 0; k < std::min(n_pos, 3); ++k) {
            const int32_t * from = k > 0 && b.grid != nullptr ? b.grid + (size_t) (k - 1) * b.n_tokens : b.pos;
            std::copy(from, from + b.n_tokens, state.positions.begin() + (size_t) k * b.n_tokens);
        }
    }

    llama_batch out = {};
    out.n_tokens = b.n_tokens;
    out.token    = const_cast<int32_t *>(b.ids);
    out.embd     = const_cast<float *>(b.rows);
    out.pos      = n_pos > 1 ? state.positions.data() : const_cast<int32_t *>(b.pos);
    out.n_seq_id = state.ones.data();
    out.seq_id   = state.seq_ptrs.data();
    out.logits   = const_cast<int8_t *>(b.output);
    return out;
}

// Rows of media for a head: an embedding of each in the place of its id, and a row of the target beside it.
int32_t decode_media(context_state & state, const llama_spec_batch & b, const llama_batch & in) {
    const std::unique_ptr<llama_batch_ext, void (*)(llama_batch_ext *)> batch(llama_batch_ext_init(state.ctx), llama_batch_ext_free);
    const size_t n_embd = (size_t) llama_model_n_embd_inp(state.model->model), n_row = (size_t) b.n_row;
    const int32_t n_pos = state.n_pos_per_row;
    std::vector<llama_pos> place((size_t) n_pos);
    for (int32_t i = 0; i < b.n_tokens; ++i) {
        for (int32_t k = 0; k < n_pos; ++k) {
            place[(size_t) k] = in.pos[(size_t) k * b.n_tokens + i];
        }
        const int32_t at = llama_batch_ext_add_embd(batch.get(), b.seq[i], { b.embd + (size_t) i * n_embd, 1, n_embd });
        if (at < 0 || !llama_batch_ext_set_embd_state(batch.get(), at, { b.rows + (size_t) i * n_row, 1, n_row }) ||
                !llama_batch_ext_set_pos(batch.get(), at, place.data()) ||
                !llama_batch_ext_set_output_logits(batch.get(), at, b.output[i] != 0)) {
            return -1;
        }
    }
    return llama_process(state.ctx, LLAMA_PROCESS_TYPE_DECODE, batch.get());
}

// While it lives, each token of a batch sees all the others.
class whole_batch {
public:
    whole_batch(llama_context * ctx, bool is_whole) : ctx(is_whole && llama_get_causal_attn(ctx) ? ctx : nullptr) {
        if (this->ctx != nullptr) {
            llama_set_causal_attn(this->ctx, false);
        }
    }
    ~whole_batch() {
        if (ctx != nullptr) {
            llama_set_causal_attn(ctx, true);
        }
    }
    whole_batch(const whole_batch &) = delete;
    whole_batch & operator=(const whole_batch &) = delete;

private:
    llama_context * ctx;
};

[[noreturn]] void fail_decode(int32_t rc) {
    if (rc == 2 && is_exiting()) {
        fail(LLAMA_SPEC_EXITING, "the process is ending");
    }
    switch (rc) {
        case  1: fail(LLAMA_SPEC_FULL, "no room for the batch in the context");
        case  2: fail(LLAMA_SPEC_CANCELLED, "the decode was cancelled");
        case -1: fail(LLAMA_SPEC_ARGUMENT, "the engine refused the batch");
        case -2: fail(LLAMA_SPEC_MEMORY, "the engine could not allocate what the batch needs");
        default: fail(LLAMA_SPEC_ENGINE, "the engine failed to compute the batch (" + std::to_string(rc) + ")");
    }
}

// A rollback of a recurrent state needs snapshots, and a decode writes them only for its own tokens. The engine does
// not shift older snapshots, yet accepts a rollback into them and then computes from a wrong state. So n_undo holds the
// limit: the snapshots of a sequence's last batch, until its cell moves.
void note_snapshots(context_state & state, const llama_spec_batch & b) {
    if (state.n_undo.empty()) {
        return;
    }
    const auto & counts = counted(state, b);
    const auto n_seqs = (int32_t) counts.size() - (int32_t) std::count(counts.begin(), counts.end(), 0);
    const llama_memory_recurrent * states = state.states;
    const int32_t n_rs_seq = (int32_t) llama_n_rs_seq(state.ctx);
    for (size_t s = 0; s < counts.size(); ++s) {
        // If every token has an output embedding, the engine may split a sequence anywhere.
        const bool is_cut = state.outputs_all && counts[s] > (int32_t) llama_n_ubatch(state.ctx);
        // Other kinds of memory do not report moved cells: snapshots are safe only if the batch has one sequence.
        const bool is_moved = states != nullptr ? states->is_moved[s] : n_seqs > 1;
        // A decode of other sequences may have promoted a snapshot: the older planes then count from another state.
        const bool is_promoted = states != nullptr && state.n_undone[s] != states->rs_idx[s];
        if (counts[s] > 0) {
            state.n_undo[s] = is_cut || is_moved ? 0 : std::min(counts[s] - 1, n_rs_seq);
        } else if (is_moved || is_promoted) {
            state.n_undo[s] = 0;
        }
        state.n_undone[s] = states != nullptr ? states->rs_idx[s] : 0;
    }
}

// The cell of each sequence, and the depth of its rollback.
struct state_places {
    std::vector<int32_t>  cells;
    std::vector<uint32_t> depths;

    explicit state_places(const context_state & state) {
        if (state.states != nullptr) {
            for (size_t s = 0; s < state.n_undo.size(); ++s) {
                cells.push_back(state.states->cells[s].tail);
            }
            depths = state.states->rs_idx;
        }
    }
};

// A decode updates the cells' bookkeeping first and computes then. A decode that fails may leave states of sequences
// outside its batch moved, and nothing moves them back. These sequences are emptied, so that none continues with
// another sequence's state.
void drop_moved(context_state & state, const state_places & before, const llama_spec_batch & b) {
    if (state.states == nullptr) {
        return;
    }
    const auto & counts = counted(state, b);
    const state_places after(state);
    for (size_t s = 0; s < before.cells.size(); ++s) {
        const bool is_moved = before.cells[s] != after.cells[s] || before.depths[s] != after.depths[s];
        if (counts[s] == 0 && before.cells[s] >= 0 && is_moved) {
            llama_memory_seq_rm(llama_get_memory(state.ctx), (llama_seq_id) s, -1, -1);
            state.n_undone[s] = state.states->rs_idx[s];
        }
    }
}

void check_row(const context_state & state, int32_t i) {
    if (i < 0 || i >= state.n_rows) {
        fail(LLAMA_SPEC_ARGUMENT, "row " + std::to_string(i) + " is outside the last batch, which had " +
                std::to_string(state.n_rows) + " tokens");
    }
}

void check_layer(const context_state & state, int32_t layer) {
    if (std::find(state.layers.begin(), state.layers.end(), layer) == state.layers.end()) {
        fail(LLAMA_SPEC_ARGUMENT, "the input of layer " + std::to_string(layer) +
                " was not asked for; open the context with it in `target_layers`");
    }
}

// A layer's rows of the whole last batch, n_embd numbers each.
struct layer_rows {
    const float * data;
    size_t n_embd;
};

layer_rows rows_of(const context_state & state, int32_t layer) {
    check_layer(state, layer);
    const llama_model * model = state.model->model;
    if (layer == LLAMA_SPEC_HEAD_ROWS) {
        return { llama_get_embeddings_nextn(state.ctx), (size_t) llama_model_n_embd_out(model) };
    }
    return { llama_get_embeddings_layer_inp(state.ctx, (uint32_t) layer), (size_t) llama_model_n_embd(model) };
}

// The newest tokens of the drafts that continue.
struct step {
    std::vector<int32_t> chains, ids, pos, seq;
    std::vector<int8_t>  output;

    void add(int32_t chain, int32_t id, int32_t position, int32_t sequence) {
        chains.push_back(chain);
        ids.push_back(id);
        pos.push_back(position);
        seq.push_back(sequence);
        output.push_back(1);
    }

    llama_spec_batch batch() {
        llama_spec_batch out = {};
        out.n_tokens = (int32_t) ids.size();
        out.ids      = ids.data();
        out.pos      = pos.data();
        out.seq      = seq.data();
        out.output   = output.data();
        return out;
    }
};

} // namespace

namespace llama_spec {

const float * logits_of(const context_state & state, int32_t i) {
    check_row(state, i);
    const float * out = state.has_logits ? llama_get_logits_ith(state.ctx, i) : nullptr;
    if (out == nullptr) {
        fail(LLAMA_SPEC_ARGUMENT, "no logits were asked for at row " + std::to_string(i) + " of the last batch; add its token with an output");
    }
    return out;
}

void decode(context_state & state, const llama_spec_batch & batch, bool encode) {
    check_batch(state, batch);
    check_begun(state, batch);
    if (!encode && llama_get_memory(state.ctx) == nullptr) {
        // The engine would encode the batch without a causal mask, and leave logits of zeros.
        fail(LLAMA_SPEC_UNSUPPORTED, std::string("architecture '") + llama_spec_arch_name(state.model->model) +
                "' keeps no memory of past tokens: it is not a model that generates text, only one that encodes it");
    }
    if (encode && !llama_model_has_encoder(state.model->model) && llama_get_memory(state.ctx) != nullptr) {
        fail(LLAMA_SPEC_UNSUPPORTED, "this model has no encoder; decode the batch instead");
    }
    if (encode && state.draft) {
        fail(LLAMA_SPEC_UNSUPPORTED, "a draft has no encoder here; decode takes the features");
    }
    if (state.draft) {
        state.draft->set_mode(state.ctx, batch);
    }
    if (encode && batch.n_tokens > (int32_t) llama_n_ubatch(state.ctx)) {
        fail(LLAMA_SPEC_ARGUMENT, "an encoder takes a batch in one piece: at most n_ubatch = " +
                std::to_string(llama_n_ubatch(state.ctx)) + " tokens");
    }
    if (batch.is_whole && batch.n_tokens > (int32_t) llama_n_ubatch(state.ctx)) {
        fail(LLAMA_SPEC_ARGUMENT, "an image that this model reads in one piece has " + std::to_string(batch.n_tokens) +
                " rows, more than `n_ubatch=" + std::to_string(llama_n_ubatch(state.ctx)) + "`");
    }
    const llama_batch in = engine_batch(state, batch);
    const whole_batch whole(state.ctx, batch.is_whole);
    state.n_rows = 0;
    const state_places before(state);
    int32_t rc = 0;
    try {
        const use_draft_output use(state.output.get());
        rc = encode ? llama_encode(state.ctx, in) : batch.embd != nullptr ? decode_media(state, batch, in) : llama_decode(state.ctx, in);
    } catch (...) {
        poison(state);
        throw;
    }
    if (rc != 0) {
        if (!lost_server_of_call().empty()) {
            poison(state);
        }
        if (rc != 1) {
            std::fill(state.n_undo.begin(), state.n_undo.end(), 0);
            drop_moved(state, before, batch);
        }
        fail_decode(rc);
    }
    state.n_rows = batch.n_tokens;
    state.has_logits = !(state.draft && batch.candidates_only);
    note_snapshots(state, batch);
}

} // namespace llama_spec

int llama_spec_decode(llama_spec_context * ctx, const llama_spec_batch * batch, bool encode) {
    return guarded_call(ctx, [&](context_state & state) {
        decode(state, *batch, encode);
    });
}

int llama_spec_synchronize(llama_spec_context * ctx) {
    return guarded_call(ctx, [&](context_state & state) {
        llama_synchronize(state.ctx);
    });
}

int llama_spec_logits(llama_spec_context * ctx, int32_t i, const float ** out) {
    return guarded_call(ctx, [&](context_state & state) {
        *out = logits_of(state, i);
    });
}

int llama_spec_draft_output(llama_spec_context * ctx, int32_t n_slots, const char ** name, uint64_t * row_bytes,
                            bool * is_targets) {
    return guarded_call(ctx, [&](context_state & state) {
        require(n_slots >= 0 && n_slots <= state.model->n_vocab(), "n_slots is outside 0 .. the size of the vocabulary");
        const ggml_tensor * whole = state.draft ? state.draft->output() : in_host_memory(state.model->model->output);
        if (whole == nullptr) {
            fail(LLAMA_SPEC_UNSUPPORTED, "this context has no draft that could choose among a part of the vocabulary");
        }
        if (state.draft && n_slots > 0 && n_slots < state.draft->least_rows()) {
            fail(LLAMA_SPEC_ARGUMENT, "this draft has to choose among at least " + std::to_string(state.draft->least_rows()) + " ids");
        }
        *name      = ggml_get_name(whole);
        *row_bytes = ggml_row_size(whole->type, whole->ne[0]);
        *is_targets = state.target && whole == state.target->model->model->output;
        // Discards graphs with the other output matrix: both calls make the engine reserve again.
        const llama_cparams & params = state.ctx->get_cparams();
        const bool has_rows = params.embeddings_nextn, is_masked = params.embeddings_nextn_masked;
        llama_set_embeddings_nextn(state.ctx, has_rows, !is_masked);
        llama_set_embeddings_nextn(state.ctx, has_rows, is_masked);
        state.output.reset();
        if (n_slots > 0) {
            state.output = std::make_unique<draft_output>(whole->type, whole->ne[0], n_slots);
        }
    });
}

int llama_spec_draft_output_set(llama_spec_context * ctx, int32_t n, const int32_t * slots, const int32_t * ids, const uint8_t * rows,
                                uint64_t n_bytes) {
    return guarded_call(ctx, [&](context_state & state) {
        require(state.output != nullptr, "there are no slots for rows of the output matrix: call draft_output() first");
        if (n_bytes != (uint64_t) n * state.output->row_bytes()) {
            fail(LLAMA_SPEC_ARGUMENT, std::to_string(n_bytes) + " bytes are not " + std::to_string(n) + " rows of " +
                    std::to_string(state.output->row_bytes()));
        }
        const int32_t n_vocab = state.model->n_vocab();
        for (int32_t i = 0; i < n; ++i) {
            require(slots[i] >= 0 && slots[i] < state.output->n_slots(), "a slot is out of range");
            require(ids[i] >= 0 && ids[i] < n_vocab, "an id is outside the vocabulary");
            state.output->set(slots[i], ids[i], rows + (size_t) i * state.output->row_bytes());
        }
    });
}

int llama_spec_likeliest(llama_spec_context * ctx, int32_t i, const int32_t * counterparts, int32_t n_max, int32_t * ids,
                         float * probabilities, int32_t * n) {
    return guarded_call(ctx, [&](context_state & state) {
        *n = pyllama_spec::likeliest(logits_of(state, i), state.model->n_vocab(), counterparts, n_max, ids, probabilities);
    });
}

int llama_spec_embeddings(llama_spec_context * ctx, int32_t i, const float ** out) {
    return guarded_call(ctx, [&](context_state & state) {
        check_row(state, i);
        *out = llama_get_embeddings_ith(state.ctx, i);
        if (*out == nullptr) {
            fail(LLAMA_SPEC_ARGUMENT, "no embeddings were asked for at row " + std::to_string(i) + " of the last batch; open the context with embeddings");
        }
    });
}

int llama_spec_embeddings_seq(llama_spec_context * ctx, int32_t seq, const float ** out) {
    return guarded_call(ctx, [&](context_state & state) {
        require(seq >= 0 && seq < (int32_t) llama_n_seq_max(state.ctx), "there is no such sequence");
        *out = llama_get_embeddings_seq(state.ctx, seq);
        if (*out == nullptr) {
            fail(LLAMA_SPEC_ARGUMENT, "the last batch gave no pooled embedding for sequence " + std::to_string(seq));
        }
    });
}

int llama_spec_draft_candidates(llama_spec_context * ctx, int32_t i, int32_t given, int32_t n_max, int32_t * ids,
                                float * probabilities, int32_t * n, const float ** row) {
    return guarded_call(ctx, [&](context_state & state) {
        if (!state.draft) {
            fail(LLAMA_SPEC_UNSUPPORTED, std::string("architecture '") + llama_spec_arch_name(state.model->model) +
                    "' is not a draft that this version knows; it knows " + draft_kind_names());
        }
        check_row(state, i);
        *n = state.draft->read(state.ctx, i, given, n_max, ids, probabilities, row, state.output.get());
        if (*row == nullptr) {
            fail(LLAMA_SPEC_ARGUMENT, "no output was asked for at row " + std::to_string(i) + " of the last batch; add its token with an output");
        }
    });
}

int llama_get_output_layer_inp(llama_spec_context * ctx, int32_t layer, const float ** out, int32_t * n_rows) {
    return guarded_call(ctx, [&](context_state & state) {
        check_layer(state, layer);
        *n_rows = state.n_rows;
        *out    = nullptr;
        if (*n_rows > 0) {
            // The rows are copied asynchronously: without this wait the caller would read stale ones.
            llama_synchronize(state.ctx);
            *out = rows_of(state, layer).data;
        }
    });
}

int llama_spec_copy_layer_inputs(llama_spec_context * ctx, const int32_t * layers, int32_t n_layers, int32_t first, int32_t n,
                                 float * out) {
    return guarded_call(ctx, [&](context_state & state) {
        if (n == 0) {
            return;
        }
        check_row(state, first);
        check_row(state, (int32_t) std::min<int64_t>((int64_t) first + n - 1, INT32_MAX));
        llama_synchronize(state.ctx);
        size_t width = 0, column = 0;
        for (int32_t k = 0; k < n_layers; ++k) {
            width += rows_of(state, layers[k]).n_embd;
        }
        for (int32_t k = 0; k < n_layers; ++k) {
            const auto [rows, n_embd] = rows_of(state, layers[k]);
            for (size_t i = 0; i < (size_t) n; ++i) {
                const float * row = rows + ((size_t) first + i) * n_embd;
                std::copy(row, row + n_embd, out + i * width + column);
            }
            column += n_embd;
        }
    });
}

int llama_spec_draft_chains(llama_spec_context * ctx, const llama_spec_chains * chains, llama_spec_next next, void * user) {
    return guarded_call(ctx, [&](context_state & state) {
        step now;
        for (int32_t i = 0; i < chains->n; ++i) {
            now.add(i, chains->ids[i], chains->pos[i], chains->seq[i]);
        }
        while (!now.ids.empty()) {
            decode(state, now.batch(), false);
            step then;
            for (size_t i = 0; i < now.ids.size(); ++i) {
                int32_t id = -1;
                float   p  = 0.0f;
                pyllama_spec::likeliest(logits_of(state, (int32_t) i), state.model->n_vocab(), chains->counterparts, 1, &id, &p);
                if (next(user, now.chains[i], id, p) && id >= 0) {
                    then.add(now.chains[i], id, now.pos[i] + 1, now.seq[i]);
                }
            }
            now = std::move(then);
        }
    });
}
