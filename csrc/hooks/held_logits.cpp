// Greedy decoding needs one id for each row of a verify batch, so whole rows of logits can stay on the device that
// computed them. A graph whose logits are computed on a device ends with each row's likeliest id, its logit, and the
// number of lower logits; only these are copied to the host. The logits follow if a caller reads one of their rows
// before the next graph is computed. Devices differ in which of two equally likely tokens they choose, so in that case
// the row itself is read. For an MTP head, the two likeliest ids and their probabilities are copied instead: a draft
// reads nothing else. Nothing changes on the CPU.

#include "hooks/held_logits.h"

#include "base/draft_output.h"

#include "llama-context.h"
#include "llama-graph.h"
#include "llama-model.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <vector>

namespace {

constexpr const char * NAME = "spec_likeliest";
constexpr const char * CANDIDATES = "spec_candidates";
// Counting lower logits takes as much memory as the logits. A verify batch has few rows. With more rows, such as a
// whole prompt's logits, the caller reads them all anyway.
constexpr int64_t MAX_ROWS = 64;

bool is_device(ggml_backend_dev_t device) {
    return device != nullptr && ggml_backend_dev_type(device) != GGML_BACKEND_DEVICE_TYPE_CPU;
}

// The result node near the end of a graph: a head's output rows may come after it (hooks/layer_inputs.cpp).
ggml_tensor * chosen_in(ggml_cgraph * gf) {
    const int n = std::min(ggml_graph_n_nodes(gf), 4);
    for (int i = 1; i <= n; ++i) {
        ggml_tensor * node = ggml_graph_node(gf, -i);
        if (std::strcmp(node->name, NAME) == 0 || std::strcmp(node->name, CANDIDATES) == 0) {
            return node;
        }
    }
    return nullptr;
}

} // namespace

struct llama_spec_held_logits {
    const ggml_tensor * logits = nullptr;   // NULL once they were copied
    ggml_backend_t backend = nullptr;
    int64_t first = 0, n = 0;               // rows of the batch's outputs
    int64_t n_numbers = 0;                  // for each row
    bool    is_under_way = false;
    bool    are_candidates = false;
    std::vector<float> numbers;             // id, logit and number of lower ones for each row; or candidates

    bool hold(llama_context & ctx, const llm_graph_result & res, ggml_backend_t on, int64_t first_output) {
        ggml_tensor * chosen = chosen_in(res.get_gf());
        if (chosen == nullptr || !is_device(ggml_backend_get_device(on))) {
            return false;
        }
        ggml_backend_t at = ggml_backend_sched_get_tensor_backend(ctx.sched.get(), chosen);
        if (at == nullptr) {
            return false;
        }
        n_numbers = chosen->ne[0];
        n         = chosen->ne[1];
        if (numbers.size() < (size_t) (n_numbers * n)) {
            ggml_backend_synchronize(at);   // an earlier copy into the same memory may still run
            numbers.resize((size_t) (n_numbers * n));
        }
        ggml_backend_tensor_get_async(at, chosen, numbers.data(), 0, ggml_nbytes(chosen));
        logits         = res.t_logits;
        backend        = on;
        first          = first_output;
        is_under_way   = true;
        are_candidates = std::strcmp(chosen->name, CANDIDATES) == 0;
        return true;
    }

    void fetch(llama_context & ctx) {
        if (logits == nullptr) {
            return;
        }
        ggml_backend_tensor_get_async(backend, logits, ctx.logits.data + first * logits->ne[0], 0, ggml_nbytes(logits));
        ggml_backend_synchronize(backend);
        logits = nullptr;
    }

    void drop() {
        logits = nullptr;
        n      = 0;
    }

    // The results for token i; NULL if there are none.
    const float * of_token(llama_context & ctx, int32_t i) {
        if (n == 0) {
            return nullptr;
        }
        if (is_under_way) {
            ctx.synchronize();
            is_under_way = false;
        }
        int64_t row = 0;
        try {
            row = ctx.output_resolve_row(i) - first;
        } catch (const std::runtime_error &) {
            return nullptr;
        }
        return row < 0 || row >= n ? nullptr : numbers.data() + n_numbers * row;
    }

    int32_t choice(llama_context & ctx, int32_t i) {
        const float * found = are_candidates ? nullptr : of_token(ctx, i);
        if (found == nullptr) {
            return -1;
        }
        const float id = found[0], logit = found[1], n_lower = found[2], n_vocab = (float) ctx.model.vocab.n_tokens();
        // Comparisons with NaN are false, so a NaN does not count as lower.
        const bool is_choice = id >= 0.0f && id < n_vocab && logit > -std::numeric_limits<float>::infinity() &&
            n_lower == n_vocab - 1.0f;
        return is_choice ? (int32_t) id : -1;
    }

    int32_t candidates(llama_context & ctx, int32_t i, int32_t n_max, int32_t * ids, float * probabilities) {
        const float * found = are_candidates ? of_token(ctx, i) : nullptr;
        if (found == nullptr) {
            return -1;
        }
        static const std::vector<int32_t> same_ids;
        const llama_spec::draft_ids known = { (int32_t) ctx.model.vocab.n_tokens(), same_ids, nullptr };
        return llama_spec::read_candidates(found, llama_spec::HEAD_CANDIDATES, known, n_max, ids, probabilities);
    }

    static llama_spec_held_logits & of(llama_context & ctx) {
        if (!ctx.spec_held) {
            ctx.spec_held = std::make_shared<llama_spec_held_logits>();
        }
        return *ctx.spec_held;
    }
};

void llama_spec_add_likeliest(const llama_model & model, llm_graph_result & res, bool is_head) {
    ggml_tensor * logits = res.t_logits;
    ggml_backend_dev_t device = model.dev_output();
    // A draft's candidates are also chosen on the device: base/draft_output.cpp.
    const bool is_draft = !model.target_layer_ids.empty();
    if (logits == nullptr || is_draft || !is_device(device) || model.split_mode() == LLAMA_SPLIT_MODE_TENSOR) {
        return;
    }
    const int64_t n_vocab = logits->ne[0], n_rows = logits->ne[1];
    if (logits->type != GGML_TYPE_F32 || n_rows == 0 || n_rows > MAX_ROWS || !ggml_is_matrix(logits) || !ggml_is_contiguous(logits) ||
        n_vocab != (int64_t) model.vocab.n_tokens() || n_vocab > (1 << 24)) {
        return;
    }
    ggml_context * ctx = res.get_ctx();
    if (is_head) {
        ggml_tensor * packed = llama_spec::build_candidates(ctx, res.get_gf(), logits, llama_spec::HEAD_CANDIDATES, nullptr).packed;
        ggml_set_name(packed, CANDIDATES);
        ggml_set_output(packed);
        ggml_build_forward_expand(res.get_gf(), packed);
        return;
    }
    ggml_tensor * id     = ggml_argmax(ctx, logits);
    // For a row of NaN some devices return -1, which must not become an index.
    ggml_tensor * number = ggml_clamp(ctx, ggml_cast(ctx, id, GGML_TYPE_F32), 0.0f, (float) (n_vocab - 1));
    ggml_tensor * place  = ggml_cast(ctx, ggml_reshape_2d(ctx, number, 1, n_rows), GGML_TYPE_I32);
    ggml_tensor * logit  = ggml_get_rows(ctx, ggml_reshape_3d(ctx, logits, 1, n_vocab, n_rows), place);
    ggml_tensor * best   = ggml_reshape_2d(ctx, logit, 1, n_rows);
    ggml_tensor * behind = ggml_sub(ctx, logits, best);
    ggml_tensor * above  = ggml_neg(ctx, behind);
    ggml_tensor * lower  = ggml_step(ctx, above);
    ggml_tensor * count  = ggml_sum_rows(ctx, lower);
    ggml_tensor * two    = ggml_concat(ctx, ggml_reshape_2d(ctx, number, 1, n_rows), best, 0);
    ggml_tensor * all    = ggml_concat(ctx, two, count, 0);
    for (const ggml_tensor * op : { id, number->src[0], number, place, logit, behind, above, lower, count, two, all }) {
        if (!ggml_backend_dev_supports_op(device, op)) {
            return;     // on another device it would cost more than it saves
        }
    }
    ggml_set_name(all, NAME);
    ggml_set_output(logits->view_src != nullptr ? logits->view_src : logits);
    ggml_set_output(all);
    ggml_build_forward_expand(res.get_gf(), all);
}

bool llama_spec_hold_logits(llama_context & ctx, const llm_graph_result & res, ggml_backend_t backend, int64_t first) {
    return llama_spec_held_logits::of(ctx).hold(ctx, res, backend, first);
}

void llama_spec_fetch_logits(llama_context & ctx, bool for_good) {
    auto & held = llama_spec_held_logits::of(ctx);
    held.fetch(ctx);
    if (for_good) {
        held.drop();
    }
}

void llama_spec_drop_logits(llama_context & ctx) {
    llama_spec_held_logits::of(ctx).drop();
}

int32_t llama_spec_likeliest(llama_context * ctx, int32_t i) {
    return llama_spec_held_logits::of(*ctx).choice(*ctx, i);
}

int32_t llama_spec::held_candidates(llama_context * ctx, int32_t i, int32_t n_max, int32_t * ids, float * probabilities) {
    return llama_spec_held_logits::of(*ctx).candidates(*ctx, i, n_max, ids, probabilities);
}
