#include "base/draft_output.h"

#include "ggml-backend.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <stdexcept>
#include <vector>

namespace llama_spec {

void keep_logits(ggml_tensor * logits) {
    ggml_set_output(logits->view_src != nullptr ? logits->view_src : logits);
}

ggml_tensor * spread_logits(ggml_context * ctx, ggml_tensor * logits, ggml_tensor * ids, int64_t n_vocab) {
    if (ids == nullptr) {
        return logits;
    }
    const int64_t n_draft = logits->ne[0], n_rows = logits->ne[1];
    ggml_tensor * all = ggml_fill(ctx, ggml_new_tensor_3d(ctx, GGML_TYPE_F32, 1, n_vocab, n_rows), -INFINITY);
    all = ggml_set_rows(ctx, all, ggml_reshape_3d(ctx, logits, 1, n_draft, n_rows), ggml_reshape_3d(ctx, ids, n_draft, 1, 1));
    return ggml_reshape_2d(ctx, all, n_vocab, n_rows);
}

namespace {

thread_local const draft_output * in_use = nullptr;

} // namespace

draft_output::draft_output(ggml_type type, int64_t n_embd, int32_t n_slots) {
    meta.reset(ggml_init({ 2 * ggml_tensor_overhead(), nullptr, /* no_alloc */ true }));
    if (meta == nullptr) {
        throw std::bad_alloc();
    }
    rows = ggml_new_tensor_2d(meta.get(), type, n_embd, n_slots);
    ids  = ggml_new_tensor_1d(meta.get(), GGML_TYPE_I32, n_slots);
    buffer.reset(ggml_backend_alloc_ctx_tensors_from_buft(meta.get(), ggml_backend_cpu_buffer_type()));
    if (buffer == nullptr) {
        throw std::bad_alloc();
    }
    ggml_backend_buffer_set_usage(buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    ggml_backend_buffer_clear(buffer.get(), 0);
}

void draft_output::set(int32_t slot, int32_t id, const void * row) {
    std::memcpy(static_cast<char *>(rows->data) + (size_t) slot * rows->nb[1], row, rows->nb[1]);
    static_cast<int32_t *>(ids->data)[slot] = id;
}

ggml_tensor * draft_output::product(ggml_context * ctx, ggml_tensor * normed) const {
    return ggml_mul_mat(ctx, rows, normed);
}

ggml_tensor * draft_output::build(ggml_context * ctx, ggml_cgraph * gf, ggml_tensor * logits, int64_t n_vocab) const {
    std::vector<ggml_tensor *> chain = { logits };
    while (chain.back()->op == GGML_OP_SCALE && chain.back()->view_src == nullptr) {
        chain.push_back(chain.back()->src[0]);
    }
    ggml_tensor * product = chain.back();
    if (product->op != GGML_OP_MUL_MAT || product->src[0]->ne[0] != rows->ne[0] || product->ne[0] != n_vocab) {
        return nullptr;
    }
    // The graph already holds these nodes: shrinks them in place.
    product->src[0] = rows;
    for (ggml_tensor * t : chain) {
        t->ne[0] = rows->ne[1];
        for (int i = 1; i < GGML_MAX_DIMS; ++i) {
            t->nb[i] = t->nb[i - 1] * (size_t) t->ne[i - 1];
        }
    }
    ggml_tensor * all = spread_logits(ctx, logits, ids, n_vocab);
    keep_logits(all);
    ggml_build_forward_expand(gf, all);
    return all;
}

use_draft_output::use_draft_output(const draft_output * output) {
    in_use = output;
}

use_draft_output::~use_draft_output() {
    in_use = nullptr;
}

const draft_output * draft_output_in_use() {
    return in_use;
}

candidates build_candidates(ggml_context * ctx, ggml_cgraph * gf, ggml_tensor * logits, int n, ggml_tensor * before) {
    const int64_t n_draft = logits->ne[0], n_rows = logits->ne[1];
    keep_logits(logits);
    ggml_tensor * id  = ggml_argmax(ctx, logits);
    ggml_tensor * p   = ggml_reshape_3d(ctx, ggml_soft_max(ctx, logits), 1, n_draft, n_rows);
    ggml_tensor * cur = before;
    candidates out = { id, nullptr };
    const auto append = [&](ggml_tensor * column) {
        column = ggml_reshape_2d(ctx, column, 1, n_rows);
        cur = cur != nullptr ? ggml_concat(ctx, cur, column, 0) : column;
    };
    for (int rank = 0; rank < n; ++rank) {
        append(ggml_cast(ctx, id, GGML_TYPE_F32));
        append(ggml_get_rows(ctx, p, ggml_reshape_2d(ctx, id, 1, n_rows)));
        if (rank + 1 < n) {
            // Overwrites the likeliest in place, after it was read, so that the argmax gives the next one.
            ggml_build_forward_expand(gf, cur);
            p  = ggml_set_rows(ctx, p, ggml_fill(ctx, ggml_new_tensor_3d(ctx, GGML_TYPE_F32, 1, 1, n_rows), -1.0f),
                    ggml_reshape_2d(ctx, id, 1, n_rows));
            id = ggml_argmax(ctx, ggml_reshape_2d(ctx, p, n_draft, n_rows));
        }
    }
    out.packed = cur;
    return out;
}

int32_t draft_ids::size() const {
    return part != nullptr ? part->n_slots() : n_draft;
}

int32_t draft_ids::in_target(int32_t id) const {
    if (part != nullptr) {
        return part->id_of_slot()[id];
    }
    return ids_of.empty() ? id : ids_of[(size_t) id];
}

int32_t read_candidates(const float * packed, int32_t n, const draft_ids & known, int32_t n_max, int32_t * ids,
                        float * probabilities) {
    int32_t i = 0;
    for (; i < std::min(n_max, n); ++i, packed += 2) {
        if (!(packed[0] >= 0.0f && packed[0] < (float) known.size())) {
            throw std::runtime_error("the draft chose no token");
        }
        if (i > 0 && packed[1] < 0.0f) {
            break;  // overwritten: the vocabulary has no further id
        }
        ids[i] = known.in_target((int32_t) packed[0]);
        probabilities[i] = packed[1];
    }
    return i;
}

} // namespace llama_spec
