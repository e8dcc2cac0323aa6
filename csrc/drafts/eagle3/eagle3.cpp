// Replaces the engine's src/models/eagle3.cpp for EAGLE-3 draft heads; docs/eagle3.md describes the computation. There
// is one graph and no encoder: a batch's rows are either features of the target or the head's own from the previous
// step. So the call that feeds accepted rows is also the first step of the next draft.

#include "base/draft_output.h"
#include "drafts/draft_kind.h"
#include "drafts/eagle3/spec-eagle3.h"

#include "models/models.h"

#include "llama-batch.h"
#include "llama-context.h"
#include "llama-ext.h"
#include "llama-kv-cache.h"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

using namespace llama_spec;

namespace {

[[noreturn]] void refuse(const std::string & why) {
    throw std::runtime_error("this EAGLE-3 draft cannot be used: " + why);
}

void check(const std::string & fault) {
    if (!fault.empty()) {
        refuse(fault);
    }
}

} // namespace

void llama_model_eagle3::load_arch_hparams(llama_model_loader & ml) {
    ml.get_key(LLM_KV_ATTENTION_LAYERNORM_RMS_EPS, hparams.f_norm_rms_eps);
    ml.get_arr(LLM_KV_TARGET_LAYERS, target_layer_ids, false);
    check(target_layers_fault("eagle3", target_layer_ids));
    ml.get_key(LLM_KV_TARGET_HIDDEN_SIZE, spec.n_embd_target);
    if (spec.n_embd_target == 0 || spec.n_embd_target > (1u << 20)) {
        refuse("eagle3.target_hidden_size is " + std::to_string(spec.n_embd_target));
    }
    ml.get_key(LLM_KV_NORM_BEFORE_RESIDUAL, hparams.norm_before_residual, false);
    ml.get_key(LLM_KV_NORM_BEFORE_FC,       hparams.norm_before_fc,       false);
    check(flag_fault(ml, "eagle3.fc_norm", &spec.fc_norm));
    check(flag_fault(ml, "eagle3.norm_output", &spec.norm_output));
    check(flag_fault(ml, "eagle3.attention.output_gate", &spec.output_gate));
    if (spec.fc_norm && hparams.norm_before_fc) {
        refuse("eagle3.fc_norm and eagle3.norm_before_fc are both true: the features would be normed twice");
    }
    if (hparams.n_embd_head_k() != hparams.n_embd_head_v()) {
        refuse("eagle3.attention.key_length and value_length differ");
    }
    spec.n_features = spec.n_embd_target * (uint32_t) target_layer_ids.size();
    // Both kinds of rows use one input; the narrower kind leaves the end of a row unread.
    hparams.n_embd_inp_enc_impl = std::max(spec.n_features, (uint32_t) hparams.n_embd);
    hparams.n_embd_out_impl = hparams.n_embd + LLAMA_SPEC_EAGLE3_EXTRA;
    type = LLM_TYPE_UNKNOWN;
}

void llama_model_eagle3::load_arch_tensors(llama_model_loader &) {
    LLAMA_LOAD_LOCALS;

    std::set<std::string> known;
    const auto create = [&](const LLM_TN_IMPL & name, const std::initializer_list<int64_t> & shape, int flags) {
        known.insert(name.str());
        return create_tensor(name, shape, flags);
    };
    const int optional = TENSOR_NOT_REQUIRED;
    const int64_t n_features = spec.n_features;

    int64_t n_vocab_draft = 0;
    check(d2t_fault(*ml, n_vocab, &n_vocab_draft));
    if (ml->get_tensor_meta("d2t") != nullptr) {
        d2t = create(tn(LLM_TENSOR_D2T), {n_vocab_draft}, 0);
    }

    fc      = create(tn(LLM_TENSOR_FC, "weight"), {n_features, n_embd}, 0);
    spec.fc_b = create(tn(LLM_TENSOR_FC, "bias"), {n_embd}, optional);
    if (hparams.norm_before_fc) {
        output_norm_enc = create(tn(LLM_TENSOR_ENC_OUTPUT_NORM, "weight"), {n_features}, 0);
    }
    for (size_t i = 0; spec.fc_norm && i < target_layer_ids.size(); ++i) {
        const std::string suffix = std::to_string(i) + ".weight";
        spec.fc_norms.push_back(create(tn(LLM_TENSOR_ENC_OUTPUT_NORM, suffix.c_str()), {(int64_t) spec.n_embd_target}, 0));
    }

    output_norm = create(tn(LLM_TENSOR_OUTPUT_NORM, "weight"), {n_embd}, 0);
    output      = create(tn(LLM_TENSOR_OUTPUT, "weight"), {n_embd, n_vocab_draft}, optional);
    if (d2t != nullptr && output == nullptr) {
        refuse("it has d2t but no output.weight: the target's own output has the whole vocabulary");
    }
    if (const ggml_tensor * meta = ml->get_tensor_meta(tn(LLM_TENSOR_TOKEN_EMBD, "weight").str().c_str())) {
        if (meta->ne[1] < n_vocab) {
            refuse("token_embd.weight has " + std::to_string(meta->ne[1]) + " rows, fewer than the vocabulary's " +
                    std::to_string(n_vocab) + " tokens");
        }
        tok_embd = create(tn(LLM_TENSOR_TOKEN_EMBD, "weight"), {n_embd, meta->ne[1]}, 0);
    }

    const int64_t n_q = n_embd_head_k * n_head;
    for (int i = 0; i < n_layer; ++i) {
        auto & layer = layers[i];
        const int64_t n_in = i == 0 ? 2 * n_embd : n_embd;
        const int64_t n_q_rows = spec.output_gate ? 2 * n_q : n_q;

        layer.attn_norm = create(tn(LLM_TENSOR_ATTN_NORM, "weight", i), {n_embd}, 0);
        if (i == 0) {
            layer.attn_norm_2 = create(tn(LLM_TENSOR_ATTN_NORM_2, "weight", i), {n_embd}, 0);
        }
        layer.wq   = create(tn(LLM_TENSOR_ATTN_Q,   "weight", i), {n_in, n_q_rows}, 0);
        layer.wk   = create(tn(LLM_TENSOR_ATTN_K,   "weight", i), {n_in, n_embd_k_gqa}, 0);
        layer.wv   = create(tn(LLM_TENSOR_ATTN_V,   "weight", i), {n_in, n_embd_v_gqa}, 0);
        layer.wo   = create(tn(LLM_TENSOR_ATTN_OUT, "weight", i), {n_q, n_embd}, 0);
        layer.wq_b = create(tn(LLM_TENSOR_ATTN_Q,   "bias", i), {n_q_rows}, optional);
        layer.wk_b = create(tn(LLM_TENSOR_ATTN_K,   "bias", i), {n_embd_k_gqa}, optional);
        layer.wv_b = create(tn(LLM_TENSOR_ATTN_V,   "bias", i), {n_embd_v_gqa}, optional);
        layer.wo_b = create(tn(LLM_TENSOR_ATTN_OUT, "bias", i), {n_embd}, optional);

        layer.attn_q_norm = create(tn(LLM_TENSOR_ATTN_Q_NORM, "weight", i), {n_embd_head_k}, optional);
        layer.attn_k_norm = create(tn(LLM_TENSOR_ATTN_K_NORM, "weight", i), {n_embd_head_k}, optional);
        if ((layer.attn_q_norm == nullptr) != (layer.attn_k_norm == nullptr)) {
            refuse("blk." + std::to_string(i) + " has one of attn_q_norm.weight and attn_k_norm.weight, and not the other");
        }

        layer.ffn_norm = create(tn(LLM_TENSOR_FFN_NORM, "weight", i), {n_embd}, 0);
        layer.ffn_gate = create(tn(LLM_TENSOR_FFN_GATE, "weight", i), {n_embd, n_ff}, 0);
        layer.ffn_down = create(tn(LLM_TENSOR_FFN_DOWN, "weight", i), {n_ff, n_embd}, 0);
        layer.ffn_up   = create(tn(LLM_TENSOR_FFN_UP,   "weight", i), {n_embd, n_ff}, 0);

        const int flags = optional | (i > 0 ? TENSOR_DUPLICATED : 0);
        layer.rope_freqs = create(tn(LLM_TENSOR_ROPE_FREQS,         "weight", i), {n_rot/2}, flags);
        layer.rope_long  = create(tn(LLM_TENSOR_ROPE_FACTORS_LONG,  "weight", i), {n_rot/2}, flags);
        layer.rope_short = create(tn(LLM_TENSOR_ROPE_FACTORS_SHORT, "weight", i), {n_rot/2}, flags);
    }
    std::set<std::string> ids = skip_ngrams(*ml);
    known.insert(ids.begin(), ids.end());
    check(leftover_fault(*ml, known, "docs/eagle3.md"));
    ids.insert("d2t");
    check(types_fault(*ml, ids));
}

namespace {

struct eagle3_graph : public llm_graph_context {
    eagle3_graph(const llama_model_eagle3 & model, const llm_graph_params & params);

  private:
    const llama_model_eagle3 & model;
    const llama_model * other;      // the target, if a tensor is shared
    llm_graph_input_attn_kv * inp_attn = nullptr;
    ggml_tensor * inp_pos     = nullptr;
    ggml_tensor * inp_out_ids = nullptr;

    bool is_mode(int bit) const { return (cparams.nextn_layer_offset & bit) != 0; }
    // A batch without outputs needs only the last layer's K and V, so its graph differs; reserved graphs do too.
    bool is_last(int il) const { return il == n_layer - 1; }

    ggml_tensor * columns(ggml_tensor * rows, int64_t first, int64_t n);
    ggml_tensor * fuse(ggml_tensor * features);
    ggml_tensor * attention(ggml_tensor * cur, int il);
    ggml_tensor * block(ggml_tensor * cur, ggml_tensor * residual, int il);
    void          finish(ggml_tensor * cur);
};

eagle3_graph::eagle3_graph(const llama_model_eagle3 & model, const llm_graph_params & params)
    : llm_graph_context(params), model(model),
      other(cparams.ctx_other != nullptr ? llama_get_model(cparams.ctx_other) : nullptr) {
    ggml_tensor * tok_embd = model.tok_embd != nullptr ? model.tok_embd : other->tok_embd;

    auto inp = std::make_unique<llm_graph_input_embd_h>(n_embd, hparams.n_embd_inp_enc());
    inp->tokens = ggml_new_tensor_1d(ctx0, GGML_TYPE_I32, n_tokens);
    inp->embd   = ggml_new_tensor_2d(ctx0, GGML_TYPE_F32, n_embd, n_tokens);
    inp->h      = ggml_new_tensor_2d(ctx0, GGML_TYPE_F32, hparams.n_embd_inp_enc(), n_tokens);
    ggml_set_input(inp->tokens);
    ggml_set_input(inp->embd);
    ggml_set_input(inp->h);
    // In the place of media there are rows of a projector.
    ggml_tensor * tokens = ubatch.token != nullptr ? ggml_get_rows(ctx0, tok_embd, inp->tokens) : inp->embd;
    cb(tokens, "inp_embd", -1);
    ggml_tensor * rows = inp->h;
    res->add_input(std::move(inp));

    rows = is_mode(LLAMA_SPEC_EAGLE3_HIDDEN_ROWS) ? columns(rows, 0, n_embd) : fuse(columns(rows, 0, model.spec.n_features));
    cb(rows, "inp_rows", -1);

    inp_pos  = build_inp_pos();
    inp_attn = build_attn_inp_kv();
    if (n_outputs > 0) {
        inp_out_ids = build_inp_out_ids();
    }

    ggml_tensor * cur = nullptr, * residual = nullptr;
    for (int il = 0; il < n_layer; ++il) {
        if (il == 0) {
            ggml_tensor * row_norm = build_norm(rows, model.layers[0].attn_norm_2, nullptr, LLM_NORM_RMS, il);
            residual = hparams.norm_before_residual ? row_norm : rows;
            cur = ggml_concat(ctx0, build_norm(tokens, model.layers[0].attn_norm, nullptr, LLM_NORM_RMS, il), row_norm, 0);
        } else {
            residual = cur;
            cur = build_norm(cur, model.layers[il].attn_norm, nullptr, LLM_NORM_RMS, il);
        }
        cb(cur, "attn_inp", il);
        cur = block(cur, residual, il);
    }
    if (cur != nullptr) {
        finish(cur);
    }
}

ggml_tensor * eagle3_graph::columns(ggml_tensor * rows, int64_t first, int64_t n) {
    if (first == 0 && n == rows->ne[0]) {
        return rows;
    }
    return ggml_cont(ctx0, ggml_view_2d(ctx0, rows, n, rows->ne[1], rows->nb[1], first * ggml_element_size(rows)));
}

ggml_tensor * eagle3_graph::fuse(ggml_tensor * features) {
    ggml_tensor * cur = features;
    if (hparams.norm_before_fc) {
        cur = build_norm(cur, model.output_norm_enc, nullptr, LLM_NORM_RMS, -1);
    }
    const int64_t n = model.spec.n_embd_target;
    for (size_t i = 0; i < model.spec.fc_norms.size(); ++i) {
        ggml_tensor * part = build_norm(columns(features, (int64_t) i * n, n), model.spec.fc_norms[i], nullptr, LLM_NORM_RMS, -1);
        cur = i == 0 ? part : ggml_concat(ctx0, cur, part, 0);
    }
    cur = build_lora_mm(model.fc, cur);
    return model.spec.fc_b != nullptr ? ggml_add(ctx0, cur, model.spec.fc_b) : cur;
}

// The caller projects the result, since it gates it first. Returns NULL if only K and V are needed.
ggml_tensor * eagle3_graph::attention(ggml_tensor * cur, int il) {
    const auto & layer = model.layers[il];
    const int64_t n_head_dim = hparams.n_embd_head_k();
    const auto project = [&](ggml_tensor * w, ggml_tensor * b) {
        ggml_tensor * out = build_lora_mm(w, cur);
        return b != nullptr ? ggml_add(ctx0, out, b) : out;
    };
    ggml_tensor * factors = model.get_rope_factors(cparams, il);
    const auto rotate = [&](ggml_tensor * t, ggml_tensor * norm) {
        t = norm != nullptr ? build_norm(t, norm, nullptr, LLM_NORM_RMS, il) : t;
        return ggml_rope_ext(ctx0, t, inp_pos, factors, n_rot, rope_type, n_ctx_orig, freq_base, freq_scale,
                ext_factor, attn_factor, beta_fast, beta_slow);
    };
    ggml_tensor * v = ggml_reshape_3d(ctx0, project(layer.wv, layer.wv_b), n_head_dim, n_head_kv, n_tokens);
    ggml_tensor * k = ggml_reshape_3d(ctx0, project(layer.wk, layer.wk_b), n_head_dim, n_head_kv, n_tokens);
    k = rotate(k, layer.attn_k_norm);

    if (is_last(il) && n_outputs == 0) {
        // Stores them as build_attn() does.
        k = inp_attn->self_k_rot != nullptr ? llama_mul_mat_hadamard(ctx0, k, inp_attn->self_k_rot) : k;
        v = inp_attn->self_v_rot != nullptr ? llama_mul_mat_hadamard(ctx0, v, inp_attn->self_v_rot) : v;
        ggml_build_forward_expand(gf, inp_attn->mctx->cpy_k(ctx0, k, inp_attn->get_k_idxs(), il));
        ggml_build_forward_expand(gf, inp_attn->mctx->cpy_v(ctx0, v, inp_attn->get_v_idxs(), il));
        return nullptr;
    }

    ggml_tensor * q = project(layer.wq, layer.wq_b), * gate = nullptr;
    if (model.spec.output_gate) {
        const size_t size = ggml_element_size(q);
        const auto half = [&](int64_t first) {
            return ggml_cont(ctx0, ggml_view_3d(ctx0, q, n_head_dim, n_head, n_tokens, 2 * n_head_dim * size, q->nb[1], first * size));
        };
        gate = ggml_reshape_2d(ctx0, half(n_head_dim), n_head_dim * n_head, n_tokens);
        q    = half(0);
    } else {
        q = ggml_reshape_3d(ctx0, q, n_head_dim, n_head, n_tokens);
    }
    q = rotate(q, layer.attn_q_norm);
    cur = build_attn(inp_attn, nullptr, nullptr, nullptr, q, k, v, nullptr, nullptr, nullptr, 1.0f/sqrtf(float(n_head_dim)), il);
    return gate != nullptr ? ggml_mul(ctx0, cur, ggml_sigmoid(ctx0, gate)) : cur;
}

ggml_tensor * eagle3_graph::block(ggml_tensor * cur, ggml_tensor * residual, int il) {
    const auto & layer = model.layers[il];
    cur = attention(cur, il);
    if (cur == nullptr) {
        return nullptr;
    }
    if (is_last(il)) {
        cur      = ggml_get_rows(ctx0, cur,      inp_out_ids);
        residual = ggml_get_rows(ctx0, residual, inp_out_ids);
    }
    cur = build_lora_mm(layer.wo, cur);
    cur = layer.wo_b != nullptr ? ggml_add(ctx0, cur, layer.wo_b) : cur;
    cur = ggml_add(ctx0, cur, residual);
    ggml_tensor * ffn_inp = cur;
    cb(ffn_inp, "ffn_inp", il);

    cur = build_norm(cur, layer.ffn_norm, nullptr, LLM_NORM_RMS, il);
    cur = build_ffn(cur, layer.ffn_up, nullptr, nullptr, layer.ffn_gate, nullptr, nullptr, layer.ffn_down, nullptr, nullptr,
            nullptr, LLM_FFN_SILU, LLM_FFN_PAR, il);
    cur = ggml_add(ctx0, cur, ffn_inp);
    cb(cur, "eagle3_out", il);
    return cur;
}

void eagle3_graph::finish(ggml_tensor * cur) {
    ggml_tensor * normed = build_norm(cur, model.output_norm, nullptr, LLM_NORM_RMS, -1);
    cb(normed, "result_norm", -1);
    ggml_tensor * own = model.spec.norm_output ? normed : cur;

    const draft_output * part = draft_output_in_use();
    ggml_tensor * logits = part != nullptr ? part->product(ctx0, normed)
                                           : build_lora_mm(model.output != nullptr ? model.output : other->output, normed);
    cb(logits, "draft_logits", -1);

    cur = build_candidates(ctx0, gf, logits, LLAMA_SPEC_EAGLE3_CANDIDATES, own).packed;
    cb(cur, "draft_result", -1);
    ggml_set_output(cur);
    res->t_h_nextn = cur;
    ggml_build_forward_expand(gf, cur);
    if (is_mode(LLAMA_SPEC_EAGLE3_CANDIDATES_ONLY)) {
        return;
    }

    logits = spread_logits(ctx0, logits, part != nullptr ? part->slot_ids() : model.d2t, model.vocab.n_tokens());
    cb(logits, "result_output", -1);
    res->t_logits = logits;
    ggml_build_forward_expand(gf, logits);
}

} // namespace

std::unique_ptr<llm_graph_context> llama_model_eagle3::build_arch_graph(const llm_graph_params & params) const {
    if (params.gtype == LLM_GRAPH_TYPE_ENCODER) {
        throw std::runtime_error("an EAGLE-3 draft has no encoder here: decode() takes the features");
    }
    return std::make_unique<eagle3_graph>(*this, params);
}

// ---- the kind

namespace {

class eagle3_context : public draft_context {
public:
    eagle3_context(const llama_model * draft, const llama_model * target)
        : n_embd((int32_t) draft->hparams.n_embd), n_rows((int32_t) draft->hparams.n_embd_inp_enc()), n_draft(n_vocab_draft(draft)), ids_of(target_ids(draft)),
          whole(whole_output(draft, target)) {}

    void prepare(llama_context * ctx) override {
        llama_set_embeddings_nextn(ctx, true, /* masked */ true);
    }

    std::string refuse(const llama_spec_batch & batch) const override {
        if ((batch.ids == nullptr) == (batch.embd == nullptr) || batch.rows == nullptr) {
            return "an EAGLE-3 draft takes an id and a row of every token";
        }
        if (batch.mode != LLAMA_SPEC_DRAFT_FEATURES && batch.mode != LLAMA_SPEC_DRAFT_HIDDEN) {
            return "an EAGLE-3 draft has no mode " + std::to_string(batch.mode);
        }
        return "";
    }

    void set_mode(llama_context * ctx, const llama_spec_batch & batch) override {
        llama_set_nextn_layer_offset(ctx, (batch.mode == LLAMA_SPEC_DRAFT_HIDDEN ? LLAMA_SPEC_EAGLE3_HIDDEN_ROWS : 0) |
                (batch.candidates_only ? LLAMA_SPEC_EAGLE3_CANDIDATES_ONLY : 0));
    }

    int32_t n_candidates() const override { return LLAMA_SPEC_EAGLE3_CANDIDATES; }
    int32_t n_row() const override { return n_embd; }
    int32_t n_row_inp() const override { return n_rows; }
    const ggml_tensor * output() const override { return whole; }

    int32_t read(llama_context * ctx, int32_t i, int32_t /* given */, int32_t n_max, int32_t * ids, float * probabilities,
                 const float ** row, const draft_output * part) const override {
        *row = llama_get_embeddings_nextn_ith(ctx, i);
        if (*row == nullptr) {
            return 0;
        }
        return read_candidates(*row + n_embd, n_candidates(), { n_draft, ids_of, part }, n_max, ids, probabilities);
    }

private:
    int32_t n_embd, n_rows, n_draft;
    std::vector<int32_t> ids_of;    // the target's id for each draft id; empty if they are the same
    const ggml_tensor * whole;
};

} // namespace

const draft_kind llama_spec::EAGLE3_KIND = {
    "EAGLE-3",
    [](const llama_model * draft, const llama_model * target) {
        return pair_mismatch(draft, target, static_cast<const llama_model_eagle3 *>(draft)->spec.n_embd_target);
    },
    [](const llama_model * draft, const llama_model * target) -> std::unique_ptr<draft_context> {
        return std::make_unique<eagle3_context>(draft, target);
    },
    nullptr,
};
