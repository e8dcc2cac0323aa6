#include "base/candidates.h"

#include "base/draft_output.h"

#include "ggml.h"

#include <algorithm>
#include <stdexcept>

namespace llama_spec {

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
