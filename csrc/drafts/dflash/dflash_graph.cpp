#include "drafts/dflash/dflash_graph.h"

#include "llama-batch.h"
#include "llama-context.h"
#include "llama-kv-cache.h"
#include "llama-kv-cache-iswa.h"

#include <algorithm>

namespace llama_spec {

namespace {

// Of layers with a window, in a context that is not causal: their mask is set again, as that of a causal one.
class causal_window_input : public llm_graph_input_i {
public:
    explicit causal_window_input(const llm_graph_input_attn_kv_iswa * attn) : attn(attn) {}

    void set_input(const llama_ubatch * ubatch) override {
        if (attn->self_kq_mask_swa != nullptr && attn->self_kq_mask_swa->buffer != nullptr) {
            attn->mctx->get_swa()->set_input_kq_mask(attn->self_kq_mask_swa, ubatch, /* causal */ true);
        }
    }
    bool can_reuse(const llm_graph_params &) override { return true; }

private:
    const llm_graph_input_attn_kv_iswa * attn;  // which belongs to the same graph, and is set before
};

} // namespace

dflash_graph::dflash_graph(const llama_model_dflash & model, const llm_graph_params & params)
    : llm_graph_context(params), model(model),
      other(cparams.ctx_other != nullptr ? llama_get_model(cparams.ctx_other) : nullptr) {
    positions = build_inp_pos();
    if (hparams.swa_type != LLAMA_SWA_TYPE_NONE) {
        attn_iswa = build_attn_inp_kv_iswa();
        if (model.spec.is_sliding_causal && !model.spec.is_causal) {
            res->add_input(std::make_unique<causal_window_input>(attn_iswa));
        }
    } else {
        attn = build_attn_inp_kv();
    }
    if (ubatch.embd != nullptr) {
        inject();
        return;
    }
    const int64_t n_seqs = std::max<int64_t>(ubatch.n_seqs_unq, 1);
    n_blocks = n_tokens % n_seqs == 0 && n_outputs % n_seqs == 0 ? n_seqs : 1;
    ggml_tensor * cur = embed();
    out_ids = build_inp_out_ids();
    for (int il = 0; il < n_layer; ++il) {
        cur = block(cur, il);
        cb(cur, "l_out", il);
    }
    finish(cur);
}

ggml_tensor * dflash_graph::project(ggml_tensor * w, ggml_tensor * bias, ggml_tensor * cur) {
    cur = build_lora_mm(w, cur);
    return bias != nullptr ? ggml_add(ctx0, cur, bias) : cur;
}

ggml_tensor * dflash_graph::embed() {
    auto inp = std::make_unique<llm_graph_input_embd>(n_embd);
    inp->tokens = tokens = ggml_new_tensor_1d(ctx0, GGML_TYPE_I32, n_tokens);
    ggml_set_input(tokens);
    res->t_inp_tokens = tokens;
    res->add_input(std::move(inp));
    ggml_tensor * cur = ggml_get_rows(ctx0, model.tok_embd != nullptr ? model.tok_embd : other->tok_embd, tokens);
    cur = hparams.f_embedding_scale != 0.0f ? ggml_scale(ctx0, cur, hparams.f_embedding_scale) : cur;
    cb(cur, "inp_embd", -1);
    return cur;
}

ggml_tensor * dflash_graph::rotate(ggml_tensor * cur) {
    if (rope_type == GGML_ROPE_TYPE_MROPE) {
        int sections[4];
        std::copy(std::begin(hparams.rope_sections), std::begin(hparams.rope_sections) + 4, sections);
        return ggml_rope_multi(ctx0, cur, positions, nullptr, n_rot, sections, rope_type, n_ctx_orig, freq_base, freq_scale,
                ext_factor, attn_factor, beta_fast, beta_slow);
    }
    return ggml_rope_ext(ctx0, cur, positions, model.layers[0].rope_freqs, n_rot, rope_type, n_ctx_orig, freq_base, freq_scale,
            ext_factor, attn_factor, beta_fast, beta_slow);
}

std::pair<ggml_tensor *, ggml_tensor *> dflash_graph::keys_and_values(ggml_tensor * cur, int il) {
    const auto & layer = model.layers[il];
    const int64_t n_head_dim = hparams.n_embd_head_k();
    const auto heads = [&](ggml_tensor * w, ggml_tensor * bias) {
        return ggml_reshape_3d(ctx0, project(w, bias, cur), n_head_dim, n_head_kv, n_tokens);
    };
    ggml_tensor * k = heads(layer.wk, layer.wk_b);
    ggml_tensor * v = layer.wv != nullptr ? heads(layer.wv, layer.wv_b) : ggml_rms_norm(ctx0, k, hparams.f_norm_rms_eps);
    return { rotate(build_norm(k, layer.attn_k_norm, nullptr, LLM_NORM_RMS, il)), v };
}

// The engine's encoder and the keys and values of all layers in one: nothing is attended to.
void dflash_graph::inject() {
    auto inp = std::make_unique<llm_graph_input_embd>(model.spec.n_features);
    inp->embd = ggml_new_tensor_2d(ctx0, GGML_TYPE_F32, model.spec.n_features, n_tokens);
    ggml_set_input(inp->embd);
    ggml_tensor * features = inp->embd;
    res->add_input(std::move(inp));

    ggml_tensor * cur = build_norm(build_lora_mm(model.fc, features), model.output_norm_enc, nullptr, LLM_NORM_RMS, -1);
    cb(cur, "fused_features", -1);
    for (int il = 0; il < n_layer; ++il) {
        const auto [k, v] = keys_and_values(cur, il);
        store(k, v, il);
    }
    res->t_embd = cur;
}

// As build_attn() stores them.
void dflash_graph::store(ggml_tensor * k, ggml_tensor * v, int il) {
    const bool is_swa = attn_iswa != nullptr && hparams.is_swa(il);
    ggml_tensor * k_rot = attn_iswa == nullptr ? attn->self_k_rot : is_swa ? attn_iswa->self_k_rot_swa : attn_iswa->self_k_rot;
    ggml_tensor * v_rot = attn_iswa == nullptr ? attn->self_v_rot : is_swa ? attn_iswa->self_v_rot_swa : attn_iswa->self_v_rot;
    k = k_rot != nullptr ? llama_mul_mat_hadamard(ctx0, k, k_rot) : k;
    v = v_rot != nullptr ? llama_mul_mat_hadamard(ctx0, v, v_rot) : v;
    if (attn_iswa == nullptr) {
        ggml_build_forward_expand(gf, attn->mctx->cpy_k(ctx0, k, attn->get_k_idxs(), il));
        ggml_build_forward_expand(gf, attn->mctx->cpy_v(ctx0, v, attn->get_v_idxs(), il));
        return;
    }
    const auto * memory = is_swa ? attn_iswa->mctx->get_swa() : attn_iswa->mctx->get_base();
    ggml_tensor * k_ids = is_swa ? attn_iswa->get_k_idxs_swa() : attn_iswa->get_k_idxs();
    ggml_tensor * v_ids = is_swa ? attn_iswa->get_v_idxs_swa() : attn_iswa->get_v_idxs();
    ggml_build_forward_expand(gf, memory->cpy_k(ctx0, k, k_ids, il));
    ggml_build_forward_expand(gf, memory->cpy_v(ctx0, v, v_ids, il));
}

ggml_tensor * dflash_graph::attention(ggml_tensor * cur, int il) {
    const auto & layer = model.layers[il];
    const int64_t n_head_dim = hparams.n_embd_head_k();
    const auto [k, v] = keys_and_values(cur, il);
    ggml_tensor * q = ggml_reshape_3d(ctx0, project(layer.wq, layer.wq_b, cur), n_head_dim, n_head, n_tokens);
    q = rotate(build_norm(q, layer.attn_q_norm, nullptr, LLM_NORM_RMS, il));
    const float scale = hparams.f_attention_scale != 0.0f ? hparams.f_attention_scale : 1.0f/sqrtf(float(n_head_dim));
    cur = attn_iswa != nullptr
        ? build_attn(attn_iswa, nullptr, nullptr, nullptr, q, k, v, nullptr, layer.attn_sinks, nullptr, scale, il)
        : build_attn(attn,      nullptr, nullptr, nullptr, q, k, v, nullptr, layer.attn_sinks, nullptr, scale, il);
    cb(cur, "attn_out", il);
    return cur;
}

ggml_tensor * dflash_graph::block(ggml_tensor * inp, int il) {
    const auto & layer = model.layers[il];
    const auto dynamic = [&](ggml_tensor * w, ggml_tensor * cur) { return w != nullptr ? build_lora_mm(w, cur) : nullptr; };
    const auto normed = [&](ggml_tensor * w, ggml_tensor * cur) {
        return w != nullptr ? build_norm(cur, w, nullptr, LLM_NORM_RMS, il) : cur;
    };

    ggml_tensor * cur = normed(layer.attn_norm, inp);
    ggml_tensor * weights = dynamic(layer.dflash_attn_conv_proj, cur);
    cur = attention(convolve(cur, weights, layer.dflash_attn_conv_base, 0), il);
    if (il == n_layer - 1 && weights == nullptr) {
        // What follows sees no other slot; a convolution does.
        cur = ggml_get_rows(ctx0, cur, out_ids);
        inp = ggml_get_rows(ctx0, inp, out_ids);
    }
    cur = project(layer.wo, layer.wo_b, cur);
    cur = hparams.f_attn_value_scale != 0.0f ? ggml_scale(ctx0, cur, hparams.f_attn_value_scale) : cur;
    cur = convolve(cur, weights, layer.dflash_attn_conv_base, 1);
    inp = ggml_add(ctx0, normed(layer.attn_post_norm, cur), inp);
    cb(inp, "ffn_inp", il);

    cur = normed(layer.ffn_norm, inp);
    weights = dynamic(layer.dflash_ffn_conv_proj, cur);
    cur = convolve(cur, weights, layer.dflash_ffn_conv_base, 0);
    cur = build_ffn(cur, layer.ffn_up, nullptr, nullptr, layer.ffn_gate, nullptr, nullptr, layer.ffn_down, nullptr, nullptr,
            nullptr, hparams.llm_ffn_op, LLM_FFN_PAR, il);
    cur = convolve(cur, weights, layer.dflash_ffn_conv_base, 1);
    cur = ggml_add(ctx0, normed(layer.ffn_post_norm, cur), inp);
    return layer.out_scale != nullptr ? ggml_mul(ctx0, cur, layer.out_scale) : cur;
}

} // namespace llama_spec
