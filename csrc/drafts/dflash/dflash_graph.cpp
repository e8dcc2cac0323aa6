#include "base/candidates.h"
#include "base/draft_output.h"
#include "drafts/dflash/dflash_graph.h"
#include "drafts/draft_pair.h"

#include "llama-batch.h"
#include "llama-context.h"
#include "llama-kv-cache.h"
#include "llama-kv-cache-iswa.h"

#include <algorithm>

namespace llama_spec {

namespace {

// Sets the mask of layers with a window again, as a causal one, in a context that is not causal.
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
    const llm_graph_input_attn_kv_iswa * attn;  // belongs to the same graph, and is set earlier
};

// The target's id of each draft id, as 32-bit numbers, which can index tables.
class target_ids_input : public llm_graph_input_i {
public:
    explicit target_ids_input(const llama_model * model) : ids(llama_spec::target_ids(model)) {}

    void set_input(const llama_ubatch *) override {
        ggml_backend_tensor_set(tensor, ids.data(), 0, ids.size() * sizeof(int32_t));
    }
    bool can_reuse(const llm_graph_params &) override { return true; }

    ggml_tensor * tensor = nullptr;

private:
    std::vector<int32_t> ids;
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

// Replaces the engine's encoder: computes the keys and values of all layers, without attention.
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

// Stores them as build_attn() does.
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
        // Later operations read no other slot, except for a convolution.
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

// ---- heads
// The heads turn the last layer's rows into the draft's result: DFlash's likeliest tokens of each slot; DSpark's chain,
// in which each slot depends on the previous slot's choice; and DFlash2's scores of each candidate after each candidate
// of the previous slot.

// A causal convolution over the slots of each block, with weights that depend on the slot: the columns of a group share
// those of `dynamic` [2 * n_kernel * n_groups, n_tokens], and each column has its own in `base`.
ggml_tensor * dflash_graph::convolve(ggml_tensor * cur, ggml_tensor * dynamic, ggml_tensor * base, int side) {
    if (dynamic == nullptr) {
        return cur;
    }
    const int64_t n_slots = n_tokens / n_blocks, n_kernel = hparams.dflash_conv_kernel_size;
    const int64_t n_group = hparams.dflash_conv_group_size, n_groups = n_embd / n_group;
    ggml_tensor * slots = ggml_reshape_3d(ctx0, ggml_cont(ctx0, cur), n_embd, n_slots, n_blocks);
    ggml_tensor * sum = nullptr;
    // Skips taps that would lie before the beginning of every block.
    for (int64_t tap = 0; tap < std::min(n_kernel, n_slots); ++tap) {
        ggml_tensor * moved = slots;
        if (tap > 0) {
            moved = ggml_view_3d(ctx0, slots, n_embd, n_slots - tap, n_blocks, slots->nb[1], slots->nb[2], 0);
            moved = ggml_pad_ext(ctx0, moved, 0, 0, (int) tap, 0, 0, 0, 0, 0);
        }
        moved = ggml_reshape_3d(ctx0, moved, n_group, n_groups, n_tokens);
        const size_t at = (size_t) ((side * n_kernel + tap) * n_groups) * dynamic->nb[0];
        ggml_tensor * shared = ggml_view_3d(ctx0, dynamic, 1, n_groups, n_tokens, dynamic->nb[0], dynamic->nb[1], at);
        ggml_tensor * own = ggml_view_3d(ctx0, base, n_group, n_groups, 1, n_group * base->nb[0], n_embd * base->nb[0],
                side * base->nb[2] + tap * base->nb[1]);
        ggml_tensor * term = ggml_add(ctx0, ggml_mul(ctx0, moved, ggml_cont(ctx0, shared)), ggml_mul(ctx0, moved, own));
        sum = sum != nullptr ? ggml_add(ctx0, sum, term) : term;
    }
    return ggml_reshape_2d(ctx0, sum, n_embd, n_tokens);
}

void dflash_graph::finish(ggml_tensor * cur) {
    if (cur->ne[1] != n_outputs) {
        cur = ggml_get_rows(ctx0, cur, out_ids);
    }
    ggml_tensor * hidden = build_norm(cur, model.output_norm, nullptr, LLM_NORM_RMS, -1);
    cb(hidden, "result_norm", -1);
    res->t_embd = hidden;
    ggml_tensor * logits = part != nullptr ? part->product(ctx0, hidden)
                                           : build_lora_mm(model.output != nullptr ? model.output : other->output, hidden);
    cb(logits, "draft_logits", -1);
    // Scales and caps logits as the target does; a Markov head adds to the capped ones.
    logits = hparams.f_logit_scale != 0.0f ? ggml_scale(ctx0, logits, hparams.f_logit_scale) : logits;
    if (const float cap = hparams.f_final_logit_softcapping; cap > 0.0f) {
        logits = ggml_scale(ctx0, ggml_tanh(ctx0, ggml_scale(ctx0, logits, 1.0f / cap)), cap);
    }
    if (model.dflash_selector_hidden != nullptr) {
        select(hidden, logits);
    } else if (model.dspark_markov_w1 != nullptr && n_outputs / n_blocks <= (int64_t) hparams.dflash_block_size) {
        chain(hidden, logits);
    } else {
        give(build_candidates(ctx0, gf, logits, LLAMA_SPEC_DFLASH_CANDIDATES, nullptr).packed, logits);
    }
}

// Reorders [n, n_blocks, n_slots] to the batch's order, [n, n_slots * n_blocks].
ggml_tensor * dflash_graph::block_major(ggml_tensor * cur) {
    const int64_t n = cur->ne[0], n_rows = cur->ne[1] * cur->ne[2];
    return ggml_reshape_2d(ctx0, ggml_cont(ctx0, ggml_permute(ctx0, cur, 0, 2, 1, 3)), n, n_rows);
}

// The token of each block's first slot.  [n_blocks]
ggml_tensor * dflash_graph::first_tokens() {
    const size_t stride = (size_t) (n_tokens / n_blocks) * tokens->nb[0];
    return ggml_cont_1d(ctx0, ggml_view_2d(ctx0, tokens, 1, n_blocks, stride, 0), n_blocks);
}

// Concatenates in the last dimension, halves first, to copy less.
ggml_tensor * dflash_graph::join(const std::vector<ggml_tensor *> & parts, size_t first, size_t end) {
    if (end - first == 1) {
        return ggml_reshape_3d(ctx0, parts[first], parts[first]->ne[0], n_blocks, 1);
    }
    const size_t middle = (first + end) / 2;
    return ggml_concat(ctx0, join(parts, first, middle), join(parts, middle, end), 2);
}

ggml_tensor * dflash_graph::in_target(ggml_tensor * logits) {
    return spread_logits(ctx0, logits, part != nullptr ? part->slot_ids() : model.d2t, model.vocab.n_tokens());
}

// Maps slots to ids of the vocabulary. Without `part`, slots are ids.  [n]
ggml_tensor * dflash_graph::ids_at(ggml_tensor * places) {
    if (part == nullptr) {
        return places;
    }
    places = ggml_reshape_1d(ctx0, places, ggml_nelements(places));
    ggml_tensor * table = ggml_reshape_2d(ctx0, part->slot_ids(), 1, part->n_slots());
    return ggml_reshape_1d(ctx0, ggml_get_rows(ctx0, table, places), places->ne[0]);
}

// Selects the slots' values from those of all ids, [n_vocab, n_blocks]; without `part` returns all.
ggml_tensor * dflash_graph::of_slots(ggml_tensor * of_all) {
    if (part == nullptr) {
        return of_all;
    }
    const int64_t n_slots = part->n_slots();
    ggml_tensor * ids = ggml_reshape_2d(ctx0, part->slot_ids(), n_slots, 1);
    ids = n_blocks > 1 ? ggml_repeat_4d(ctx0, ids, n_slots, n_blocks, 1, 1) : ids;
    ggml_tensor * found = ggml_get_rows(ctx0, ggml_reshape_3d(ctx0, of_all, 1, of_all->ne[0], n_blocks), ids);
    return ggml_reshape_2d(ctx0, found, n_slots, n_blocks);
}

// Adds to each slot's logits the Markov head's values for the previous token, which is the previous slot's choice.
void dflash_graph::chain(ggml_tensor * hidden, ggml_tensor * logits) {
    const int64_t n_slots = n_outputs / n_blocks;
    ggml_tensor * ids_of = nullptr;
    if (model.d2t != nullptr && n_slots > 1) {
        auto inp = std::make_unique<target_ids_input>(&model);
        inp->tensor = ids_of = ggml_new_tensor_2d(ctx0, GGML_TYPE_I32, 1, model.d2t->ne[0]);
        ggml_set_input(ids_of);
        res->add_input(std::move(inp));
    }
    ggml_tensor * before = first_tokens();
    std::vector<ggml_tensor *> biased, rows;
    for (int64_t i = 0; i < n_slots; ++i) {
        rows.push_back(ggml_get_rows(ctx0, model.dspark_markov_w1, before));
        ggml_tensor * own = ggml_view_2d(ctx0, logits, logits->ne[0], n_blocks, (size_t) n_slots * logits->nb[1],
                (size_t) i * logits->nb[1]);
        biased.push_back(ggml_add(ctx0, of_slots(build_lora_mm(model.dspark_markov_w2, rows.back())), own));
        if (i + 1 < n_slots) {
            before = ggml_argmax(ctx0, biased.back());
            before = ids_of != nullptr ? ggml_reshape_1d(ctx0, ggml_get_rows(ctx0, ids_of, before), n_blocks) : ids_at(before);
        }
    }
    logits = block_major(join(biased, 0, biased.size()));
    ggml_tensor * result = build_candidates(ctx0, gf, logits, LLAMA_SPEC_DFLASH_CANDIDATES, nullptr).packed;
    if (model.dspark_conf_proj != nullptr) {
        ggml_tensor * both = ggml_concat(ctx0, hidden, block_major(join(rows, 0, rows.size())), 0);
        ggml_tensor * confidence = ggml_mul_mat(ctx0, model.dspark_conf_proj, both);
        confidence = model.dspark_conf_proj_b != nullptr ? ggml_add(ctx0, confidence, model.dspark_conf_proj_b) : confidence;
        result = ggml_concat(ctx0, result, ggml_sigmoid(ctx0, confidence), 0);
    }
    give(result, logits);
}

// For each slot: the k likeliest ids, and the score of each after each candidate of the previous slot.
void dflash_graph::select(ggml_tensor * hidden, ggml_tensor * logits) {
    logits = part != nullptr ? logits : in_target(logits);   // the tables have a row for each of the target's ids
    keep_logits(logits);
    const int64_t k = hparams.dflash_selector_top_k, rank = hparams.dflash_selector_rank;
    const int64_t n_rows = logits->ne[1], n_slots = n_rows / n_blocks;
    ggml_tensor * places = ggml_cont(ctx0, ggml_top_k(ctx0, logits, (int) k));
    ggml_tensor * ids    = ggml_reshape_2d(ctx0, ids_at(places), k, n_rows);
    ggml_tensor * unary  = ggml_get_rows(ctx0, ggml_reshape_3d(ctx0, logits, 1, logits->ne[0], n_rows), places);
    const auto table = [&](ggml_tensor * w, ggml_tensor * which) {
        return ggml_get_rows(ctx0, w, ggml_reshape_1d(ctx0, which, ggml_nelements(which)));
    };

    // The previous candidates: for a block's first slot its first token, k times; otherwise the previous slot's
    // candidates.
    ggml_tensor * shape = ggml_new_tensor_4d(ctx0, GGML_TYPE_F32, rank, k, 1, n_blocks);
    ggml_tensor * before = ggml_repeat(ctx0, ggml_reshape_4d(ctx0, table(model.dflash_selector_prev, first_tokens()), rank, 1, 1, n_blocks), shape);
    if (n_slots > 1) {
        ggml_tensor * blocks = ggml_reshape_3d(ctx0, ids, k, n_slots, n_blocks);
        ggml_tensor * earlier = ggml_cont(ctx0, ggml_view_3d(ctx0, blocks, k, n_slots - 1, n_blocks, blocks->nb[1], blocks->nb[2], 0));
        before = ggml_concat(ctx0, before,
                ggml_reshape_4d(ctx0, table(model.dflash_selector_prev, earlier), rank, k, n_slots - 1, n_blocks), 2);
    }
    before = ggml_reshape_3d(ctx0, before, rank, k, n_rows);
    ggml_tensor * gate = ggml_reshape_3d(ctx0, build_lora_mm(model.dflash_selector_hidden, hidden), rank, 1, n_rows);
    ggml_tensor * after = ggml_reshape_3d(ctx0, table(model.dflash_selector_next, ids), rank, k, n_rows);
    ggml_tensor * scores = ggml_mul_mat(ctx0, after, ggml_mul(ctx0, before, gate));    // [k, k of the previous slot, n_rows]
    scores = ggml_add(ctx0, scores, ggml_reshape_3d(ctx0, unary, k, 1, n_rows));
    ggml_tensor * packed = ggml_concat(ctx0, ggml_cast(ctx0, ids, GGML_TYPE_F32), ggml_reshape_2d(ctx0, scores, k * k, n_rows), 0);
    give(packed, logits, /* is_mapped */ part == nullptr);
}

void dflash_graph::give(ggml_tensor * result, ggml_tensor * logits, bool is_mapped) {
    cb(result, "draft_result", -1);
    ggml_set_output(result);
    res->t_h_nextn = result;
    ggml_build_forward_expand(gf, result);
    if (wants_logits()) {
        logits = is_mapped ? logits : in_target(logits);
        cb(logits, "result_output", -1);
        res->t_logits = logits;
        ggml_build_forward_expand(gf, logits);
    }
}

} // namespace llama_spec
