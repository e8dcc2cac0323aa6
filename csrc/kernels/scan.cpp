#include "scan.h"

#include "scan_rows.h"

#include "ggml-cpu-impl.h"

#include <cmath>
#include <cstring>

using namespace pyllama_spec;

namespace {

static_assert(PYLLAMA_SPEC_SCAN_COLS == MAX_COLS);

// The engine stores three words at the beginning; ours come after them.
constexpr int PLACE_AT = 8;
static_assert(PLACE_AT * sizeof(int32_t) >= sizeof(ggml_custom_op_t) + sizeof(int) + sizeof(void *));
static_assert(PLACE_AT * sizeof(int32_t) + sizeof(pyllama_spec_scan_place) <= GGML_MAX_OP_PARAMS);

// Data that both kinds of scan share. Sources 5 .. 7 of the tensor are the states, the ids and the log.
struct Scan {
    pyllama_spec_scan_shape shape;
    pyllama_spec_scan_place place;
    int64_t n_tokens, n_seqs, n_entries;
    float * states;
    float * log;
    const int32_t * ids;
    float * out;
    float * notes;      // for each head and sequence: decays {n_decay, n_tokens}, rates and crosses {n_tokens}
    float * copies;     // copies of the source cells, if cells change places

    int64_t n_head_state() const { return shape.n_rows * shape.n_cols; }
    int64_t cell(int64_t i) const { return ids[i] % place.n_cells; }
    int64_t depth(int64_t i) const { return ids[i] / place.n_cells; }
    bool is_fresh(int64_t i) const { return ids[i] % place.n_cells == place.fresh; }

    float * state_of(int64_t cell, bool is_older, int64_t head) const {
        return states + ((is_older ? place.n_cells : 0) + cell) * pyllama_spec_cell_state(&shape) + head * n_head_state();
    }

    float * log_of(int64_t cell, int64_t head) const {
        return log != nullptr ? log + cell * pyllama_spec_cell_log(&shape) + head * pyllama_spec_head_log(&shape) : nullptr;
    }

    // With several entries, a cell may be overwritten before another entry has read it.
    bool is_mixed() const {
        bool moves = false;
        for (int64_t i = 0; i < n_entries; ++i) {
            moves = moves || (cell(i) != place.head + i && !is_fresh(i));
        }
        return moves && n_entries > 1;
    }
};

int64_t n_copied(const pyllama_spec_scan_shape & s) {
    return pyllama_spec_cell_state(&s) + pyllama_spec_cell_log(&s);
}

ggml_tensor * make(ggml_context * ctx, ggml_tensor ** args, ggml_custom_op_t run, pyllama_spec_scan_shape shape, int64_t n_tokens,
                   int64_t n_seqs, pyllama_spec_scan_place place) {
    const int64_t n_entries = args[6]->ne[0];
    const int64_t n = (shape.n_rows + shape.n_decay + 2) * shape.n_heads * n_tokens * n_seqs;
    GGML_ASSERT(shape.n_cols <= PYLLAMA_SPEC_SCAN_COLS);
    GGML_ASSERT(args[5]->ne[0] == pyllama_spec_cell_state(&shape) && args[5]->ne[1] == place.n_cells * (args[7] != nullptr ? 2 : 1));
    GGML_ASSERT(args[7] == nullptr || (args[7]->ne[0] == pyllama_spec_cell_log(&shape) && args[7]->ne[1] == place.n_cells));
    ggml_tensor * out = ggml_custom_4d(ctx, GGML_TYPE_F32, n + (n_entries > 1 ? n_entries * n_copied(shape) : 0), 1, 1, 1, args,
                                       args[7] != nullptr ? 8 : 7, run, GGML_N_TASKS_MAX, nullptr);
    std::memcpy(out->op_params + PLACE_AT, &place, sizeof(place));
    return out;
}

Scan scan_of(ggml_tensor * dst, int64_t n_heads, int64_t n_rows, int64_t n_cols, int64_t n_decay, int64_t n_tokens,
             int64_t n_seqs) {
    Scan scan = {};
    std::memcpy(&scan.place, dst->op_params + PLACE_AT, sizeof(scan.place));
    scan.shape     = { n_heads, n_rows, n_cols, n_decay, scan.place.n_log };
    scan.n_tokens  = n_tokens;
    scan.n_seqs    = n_seqs;
    scan.n_entries = dst->src[6]->ne[0];
    scan.states    = (float *) dst->src[5]->data;
    scan.ids       = (const int32_t *) dst->src[6]->data;
    scan.log       = dst->src[7] != nullptr ? (float *) dst->src[7]->data : nullptr;
    scan.out       = (float *) dst->data;
    scan.notes     = scan.out + n_rows * n_heads * n_tokens * n_seqs;
    scan.copies    = scan.notes + (n_decay + 2) * n_heads * n_tokens * n_seqs;
    return scan;
}

// Sets the source and the destination of entry i, for one head.
void set_cells(const Scan & scan, Head & h, int64_t i, int64_t head, bool is_copied) {
    const bool     is_back = scan.depth(i) > 0 && scan.log != nullptr;
    const float *  from    = scan.state_of(scan.cell(i), is_back, head);
    const float *  log     = scan.log_of(scan.cell(i), head);
    const int64_t  n_head  = scan.n_head_state() + pyllama_spec_head_log(&scan.shape);
    if (is_copied) {
        from = scan.copies + (i * scan.shape.n_heads + head) * n_head;
        log  = log != nullptr ? from + scan.n_head_state() : nullptr;
    }
    h.n_rows   = scan.shape.n_rows;
    h.n_cols   = scan.shape.n_cols;
    h.n_decay  = scan.shape.n_decay;
    h.from     = scan.is_fresh(i) ? nullptr : from;
    h.n_again  = is_back && h.from != nullptr ? std::max<int64_t>((int64_t) *log - scan.depth(i), 0) : 0;
    h.again    = log != nullptr ? log + 1 : nullptr;
    h.to       = scan.state_of(scan.place.head + i, false, head);
}

void copy_source(const Scan & scan, int64_t i, int64_t head) {
    const bool    is_back = scan.depth(i) > 0 && scan.log != nullptr;
    const int64_t n_log   = pyllama_spec_head_log(&scan.shape);
    float * to = scan.copies + (i * scan.shape.n_heads + head) * (scan.n_head_state() + n_log);
    std::copy_n(scan.state_of(scan.cell(i), is_back, head), scan.n_head_state(), to);
    if (n_log > 0) {
        std::copy_n(scan.log_of(scan.cell(i), head), n_log, to + scan.n_head_state());
    }
}

// Moves the current state of a cell without tokens in the batch.
void move_only(const Scan & scan, int64_t i, int64_t head, bool is_copied) {
    // An empty cell that is its own source still has to be cleared: the engine records it as cleared, and does not
    // request it again.
    if (scan.depth(i) == 0 && scan.cell(i) == scan.place.head + i && !scan.is_fresh(i)) {
        return;
    }
    Head h = {};
    set_cells(scan, h, i, head, is_copied);
    if (h.n_decay > 1) {
        run_again<true>(h);
    } else {
        run_again<false>(h);
    }
}

// Calls f(head) for each head in this thread's share, with all operands set except those of the tokens. One thread
// computes all rows of a head, since they read the old log until the last one is done.
template <class F> void for_heads(const Scan & scan, int ith, int nth, F f) {
    const bool is_mixed = scan.is_mixed();
    const auto one = [&](int64_t i, int64_t head) {
        if (i >= scan.n_seqs) {
            return move_only(scan, i, head, is_mixed);
        }
        Head h = {};
        set_cells(scan, h, i, head, is_mixed);
        h.n_tokens = scan.n_tokens;
        h.n_before = scan.n_tokens - std::min(scan.n_tokens, scan.shape.n_log);
        h.older    = scan.log != nullptr ? scan.state_of(scan.place.head + i, true, head) : nullptr;
        h.log      = scan.log_of(scan.place.head + i, head);
        float * decays = scan.notes + (i * scan.shape.n_heads + head) * scan.n_tokens * (scan.shape.n_decay + 2);
        float * rates  = decays + scan.n_tokens * scan.shape.n_decay;
        h.decay    = decays;
        h.rate     = rates;
        h.out      = scan.out + (i * scan.n_tokens * scan.shape.n_heads + head) * scan.shape.n_rows;
        h.out_stride = scan.shape.n_heads * scan.shape.n_rows;
        f(h, decays, rates, head, i);
    };
    if (!is_mixed) {
        for (int64_t unit = ith; unit < scan.shape.n_heads * scan.n_entries; unit += nth) {
            one(unit / scan.shape.n_heads, unit % scan.shape.n_heads);
        }
        return;
    }
    for (int64_t head = ith; head < scan.shape.n_heads; head += nth) {
        for (int64_t i = 0; i < scan.n_entries; ++i) {
            copy_source(scan, i, head);
        }
        for (int64_t i = 0; i < scan.n_entries; ++i) {
            one(i, head);
        }
    }
}

const float * at(const ggml_tensor * t, int64_t i1, int64_t i3) {
    return (const float *) ((const char *) t->data + i1 * t->nb[1] + i3 * t->nb[3]);
}

int64_t stride(const ggml_tensor * t, int dim) {
    return (int64_t) (t->nb[dim] / sizeof(float));
}

void run_delta(ggml_tensor * dst, int ith, int nth, void *) {
    const ggml_tensor * q = dst->src[0], * k = dst->src[1], * v = dst->src[2], * g = dst->src[3], * beta = dst->src[4];
    const Scan scan = scan_of(dst, v->ne[1], v->ne[0], k->ne[0], g->ne[0], v->ne[2], v->ne[3]);
    for_heads(scan, ith, nth, [&](Head & h, float * decays, float * rates, int64_t head, int64_t i) {
        for (int64_t t = 0; t < h.n_tokens; ++t) {
            exp_of(h.n_decay, decays + t * h.n_decay, at(g, head, i) + t * stride(g, 2));
            rates[t] = at(beta, head, i)[t * stride(beta, 2)];
        }
        // Heads of keys and queries repeat, as in ggml_gated_delta_net().
        h.key   = at(k, head % k->ne[1], i / (v->ne[3] / k->ne[3]));
        h.query = at(q, head % q->ne[1], i / (v->ne[3] / q->ne[3]));
        h.value = at(v, head, i);
        h.key_stride   = stride(k, 2);
        h.query_stride = stride(q, 2);
        h.value_stride = stride(v, 2);
        h.scale = 1.0f / sqrtf((float) v->ne[0]);
        h.cross = rates + h.n_tokens;
        for (int64_t t = 0; t < h.n_tokens; ++t) {
            rates[h.n_tokens + t] = dot_of(h.n_cols, h.key + t * h.key_stride, h.query + t * h.query_stride);
        }
        if (h.n_decay > 1) {
            run_head<true, true>(h);
        } else {
            run_head<true, false>(h);
        }
    });
}

void run_ssm(ggml_tensor * dst, int ith, int nth, void *) {
    const ggml_tensor * x = dst->src[0], * dt = dst->src[1], * a = dst->src[2], * b = dst->src[3], * c = dst->src[4];
    const Scan scan = scan_of(dst, x->ne[1], x->ne[0], b->ne[0], 1, x->ne[2], x->ne[3]);
    for_heads(scan, ith, nth, [&](Head & h, float * decays, float * rates, int64_t head, int64_t i) {
        const float * steps = (const float *) ((const char *) dt->data + i * dt->nb[2]) + head;
        const int64_t group = head / (x->ne[1] / b->ne[1]);
        for (int64_t t = 0; t < h.n_tokens; ++t) {
            rates[t]  = ggml_compute_softplus_f32(steps[t * stride(dt, 1)]);
            decays[t] = expf(rates[t] * ((const float *) a->data)[head]);
        }
        h.key   = at(b, group, i);
        h.query = at(c, group, i);
        h.value = at(x, head, i);
        h.key_stride   = stride(b, 2);
        h.query_stride = stride(c, 2);
        h.value_stride = stride(x, 2);
        h.scale = 1.0f;
        run_head<false, false>(h);
    });
}

}  // namespace

extern "C" {

ggml_tensor * pyllama_spec_delta_scan(ggml_context * ctx, ggml_tensor * q, ggml_tensor * k, ggml_tensor * v, ggml_tensor * g,
                                      ggml_tensor * beta, ggml_tensor * states, ggml_tensor * log, ggml_tensor * ids,
                                      pyllama_spec_scan_place place) {
    GGML_ASSERT(ggml_is_contiguous_rows(q) && ggml_is_contiguous_rows(k) && ggml_is_contiguous_rows(v) && ggml_is_contiguous_rows(g));
    GGML_ASSERT(k->ne[0] == v->ne[0] && (g->ne[0] == 1 || g->ne[0] == k->ne[0]) && beta->ne[0] == 1);
    ggml_tensor * args[] = { q, k, v, g, beta, states, ids, log };
    return make(ctx, args, run_delta, { v->ne[1], v->ne[0], k->ne[0], g->ne[0], place.n_log }, v->ne[2], v->ne[3], place);
}

ggml_tensor * pyllama_spec_ssm_scan(ggml_context * ctx, ggml_tensor * x, ggml_tensor * dt, ggml_tensor * a, ggml_tensor * b,
                                    ggml_tensor * c, ggml_tensor * states, ggml_tensor * log, ggml_tensor * ids,
                                    pyllama_spec_scan_place place) {
    GGML_ASSERT(ggml_is_contiguous_rows(x) && ggml_is_contiguous_rows(b) && ggml_is_contiguous_rows(c));
    GGML_ASSERT(a->ne[0] == 1 && x->ne[1] % b->ne[1] == 0 && dt->nb[0] == sizeof(float));
    ggml_tensor * args[] = { x, dt, a, b, c, states, ids, log };
    return make(ctx, args, run_ssm, { x->ne[1], x->ne[0], b->ne[0], 1, place.n_log }, x->ne[2], x->ne[3], place);
}

void pyllama_spec_scan_back(const pyllama_spec_scan_shape * shape, const float * older, const float * log, int32_t depth,
                            float * out) {
    for (int64_t head = 0; head < shape->n_heads; ++head) {
        const float * own = log + head * pyllama_spec_head_log(shape);
        Head h = {};
        h.n_rows  = shape->n_rows;
        h.n_cols  = shape->n_cols;
        h.n_decay = shape->n_decay;
        h.from    = older + head * h.n_rows * h.n_cols;
        h.again   = own + 1;
        h.n_again = std::max<int64_t>((int64_t) *own - depth, 0);
        h.to      = out + head * h.n_rows * h.n_cols;
        if (h.n_decay > 1) {
            run_again<true>(h);
        } else {
            run_again<false>(h);
        }
    }
}

}  // extern "C"
