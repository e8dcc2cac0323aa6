// Replaces the engine's src/models/dflash.cpp for DFlash drafts, including its forms with a Markov head (DSpark) and
// with a selector (DFlash2): reads the file, builds the graph, and holds a draft's part of a context. docs/dflash.md
// describes the computation.

#include "base/draft_output.h"
#include "drafts/dflash/spec-dflash.h"
#include "drafts/draft_kind.h"

#include "models/models.h"

#include "llama-batch.h"
#include "llama-context.h"
#include "llama-ext.h"
#include "llama-kv-cache.h"
#include "llama-kv-cache-iswa.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

using namespace llama_spec;

namespace {

constexpr uint32_t MAX_WINDOW = 1u << 30;   // positions and their differences are signed 32-bit numbers
constexpr int64_t MAX_TOP_K = 64;   // a selector's candidates: k x k scores for each slot go to the host

[[noreturn]] void refuse(const std::string & why) {
    throw std::runtime_error("this DFlash draft cannot be used: " + why);
}

void check(const std::string & fault) {
    if (!fault.empty()) {
        refuse(fault);
    }
}

llm_ffn_op_type activation(llama_model_loader & ml) {
    std::string name = "silu";
    ml.get_key(LLM_KV_HIDDEN_ACT, name, false);
    if (name == "silu") {
        return LLM_FFN_SILU;
    }
    if (name == "gelu" || name == "gelu_pytorch_tanh") {
        return LLM_FFN_GELU;
    }
    refuse("its hidden activation is '" + name + "', which is none of silu, gelu and gelu_pytorch_tanh");
}

// Checks a key with a bool for each layer.
void check_flags(const llama_model_loader & ml, const char * key, uint32_t n_layer) {
    const int64_t id = gguf_find_key(ml.metadata, key);
    if (id < 0 || gguf_get_kv_type(ml.metadata, id) != GGUF_TYPE_ARRAY || gguf_get_arr_type(ml.metadata, id) != GGUF_TYPE_BOOL ||
            gguf_get_arr_n(ml.metadata, id) != n_layer) {
        refuse(std::string(key) + " is no array of a bool for each of its " + std::to_string(n_layer) + " layers");
    }
}

// Reads which layers are causal within a block. Layers with a window share one mask, and the others share another.
void read_masks(const llama_model_loader & ml, const llama_hparams & hparams, llama_spec_dflash * spec) {
    const char * key = "dflash.attention.causal_pattern";
    const int64_t id = gguf_find_key(ml.metadata, key);
    if (id < 0) {
        return;
    }
    const uint32_t n_layer = hparams.n_layer();
    check_flags(ml, key, n_layer);
    const auto * is_causal = static_cast<const int8_t *>(gguf_get_arr_data(ml.metadata, id));
    int found[2] = { -1, -1 };  // for layers without a window, and with one
    for (uint32_t il = 0; il < n_layer; ++il) {
        int & mask = found[hparams.is_swa(il) ? 1 : 0];
        if (mask >= 0 && mask != (is_causal[il] != 0 ? 1 : 0)) {
            refuse(std::string(key) + " differs among layers with a window, or among those without");
        }
        mask = is_causal[il] != 0 ? 1 : 0;
    }
    spec->is_causal = found[0] == 1 || (found[0] < 0 && found[1] == 1);
    spec->is_sliding_causal = found[1] == 1;
    if (spec->is_causal && found[1] == 0) {
        refuse(std::string(key) + " makes layers without a window causal, and not those with one");
    }
}

// Checks a selector's sizes, alone and against each other.
void check_selector(const llama_hparams & hparams, int64_t n_draft) {
    const int64_t k = hparams.dflash_selector_top_k, group = hparams.dflash_conv_group_size;
    if (hparams.dflash_selector_rank == 0 || k == 0 || group == 0 || hparams.dflash_conv_kernel_size == 0) {
        refuse("it has selector_hidden.weight, and not all of dflash.selector_rank, selector_top_k, conv_kernel_size and "
                "conv_group_size");
    }
    if (hparams.n_embd % group != 0) {
        refuse("dflash.conv_group_size is " + std::to_string(group) + ", which does not divide its width, " +
                std::to_string(hparams.n_embd));
    }
    if (k > n_draft || k > MAX_TOP_K) {
        refuse("dflash.selector_top_k is " + std::to_string(k) + ", outside 1 .. " + std::to_string(std::min(n_draft, MAX_TOP_K)));
    }
}

// Reads an optional number, and checks that it can be a size.
void read_size(llama_model_loader & ml, llm_kv kv, const char * name, uint32_t * out) {
    if (ml.get_key(kv, *out, false) && (*out == 0 || *out > (1u << 20))) {
        refuse(std::string("dflash.") + name + " is " + std::to_string(*out));
    }
}

} // namespace

void llama_model_dflash::load_arch_hparams(llama_model_loader & ml) {
    ml.get_key(LLM_KV_HYPER_CONNECTION_COUNT, hparams.dsv4_hc_mult, false);
    if (hparams.dsv4_hc_mult > 0) {
        refuse("its layers are those of DeepSeek-V4 (dflash.hyper_connection.count), which this version does not compute");
    }
    ml.get_key(LLM_KV_ATTENTION_LAYERNORM_RMS_EPS, hparams.f_norm_rms_eps);
    ml.get_key(LLM_KV_EMBEDDING_SCALE,         hparams.f_embedding_scale, false);
    ml.get_key(LLM_KV_ATTENTION_SCALE,         hparams.f_attention_scale, false);
    ml.get_key(LLM_KV_ATTENTION_VALUE_SCALE,   hparams.f_attn_value_scale, false);
    ml.get_key(LLM_KV_LOGIT_SCALE,             hparams.f_logit_scale, false);
    hparams.f_final_logit_softcapping = 0.0f;
    ml.get_key(LLM_KV_FINAL_LOGIT_SOFTCAPPING, hparams.f_final_logit_softcapping, false);
    ml.get_key_or_arr(LLM_KV_ROPE_DIMENSION_SECTIONS, hparams.rope_sections, 4, false);
    hparams.llm_ffn_op = activation(ml);
    check(layers_fault(hparams, "dflash"));

    ml.get_arr(LLM_KV_TARGET_LAYERS, target_layer_ids, false);
    check(target_layers_fault("dflash", target_layer_ids));
    check(flag_fault(ml, "dflash.attention.causal", &spec.is_causal));
    if (!ml.get_key(LLM_KV_DFLASH_BLOCK_SIZE, hparams.dflash_block_size, false)) {
        refuse("dflash.block_size is missing: how many slots was a block trained with?");
    }
    const uint32_t n_slots = hparams.dflash_block_size;
    if (n_slots < 1 || n_slots > (uint32_t) LLAMA_SPEC_DFLASH_MAX_SLOTS) {
        refuse("dflash.block_size is " + std::to_string(n_slots) + ", outside 1 .. " + std::to_string(LLAMA_SPEC_DFLASH_MAX_SLOTS));
    }
    read_size(ml, LLM_KV_DFLASH_CONV_KERNEL_SIZE, "conv_kernel_size", &hparams.dflash_conv_kernel_size);
    read_size(ml, LLM_KV_DFLASH_CONV_GROUP_SIZE,  "conv_group_size",  &hparams.dflash_conv_group_size);
    read_size(ml, LLM_KV_DFLASH_SELECTOR_RANK,    "selector_rank",    &hparams.dflash_selector_rank);
    read_size(ml, LLM_KV_DFLASH_SELECTOR_TOP_K,   "selector_top_k",   &hparams.dflash_selector_top_k);

    if (ml.get_key(LLM_KV_ATTENTION_SLIDING_WINDOW, hparams.n_swa, false) && hparams.n_swa > 0) {
        if (hparams.n_swa > MAX_WINDOW) {
            refuse("dflash.attention.sliding_window is " + std::to_string(hparams.n_swa) + ", above " + std::to_string(MAX_WINDOW));
        }
        check_flags(ml, "dflash.attention.sliding_window_pattern", hparams.n_layer());
        ml.get_arr(LLM_KV_ATTENTION_SLIDING_WINDOW_PATTERN, hparams.is_swa_impl);
        // The engine asserts that a model with a window has a layer that uses it.
        hparams.swa_type = hparams.is_swa_any() ? LLAMA_SWA_TYPE_STANDARD : LLAMA_SWA_TYPE_NONE;
        hparams.rope_freq_base_train_swa  = hparams.rope_freq_base_train;
        hparams.rope_freq_scale_train_swa = hparams.rope_freq_scale_train;
    }
    read_masks(ml, hparams, &spec);
    if (hparams.n_embd_head_k() != hparams.n_embd_head_v()) {
        refuse("dflash.attention.key_length and value_length differ");
    }
    spec.n_features = (uint32_t) target_layer_ids.size() * hparams.n_embd;
    hparams.n_embd_inp_impl = hparams.n_embd_inp_enc_impl = spec.n_features;
    type = LLM_TYPE_UNKNOWN;
}

void llama_model_dflash::load_arch_tensors(llama_model_loader &) {
    LLAMA_LOAD_LOCALS;

    std::set<std::string> known;
    const auto create = [&](const LLM_TN_IMPL & name, const std::initializer_list<int64_t> & shape, int flags) {
        known.insert(name.str());
        return create_tensor(name, shape, flags);
    };
    const auto has = [&](const char * name) { return ml->get_tensor_meta(name) != nullptr; };
    const int optional = TENSOR_NOT_REQUIRED;
    const uint32_t n_slots = hparams.dflash_block_size;

    spec.mask = vocab.token_mask();
    if (spec.mask < 0 || spec.mask >= n_vocab) {
        refuse("tokenizer.ggml.mask_token_id is " + (spec.mask == LLAMA_TOKEN_NULL ? "missing" : std::to_string(spec.mask)) +
                ": which of its " + std::to_string(n_vocab) + " tokens stands in a slot that is to be guessed?");
    }
    int64_t n_draft = 0;
    check(d2t_fault(*ml, n_vocab, &n_draft));
    if (has("d2t")) {
        d2t = create(tn(LLM_TENSOR_D2T), {n_draft}, 0);
    }
    fc              = create(tn(LLM_TENSOR_FC,              "weight"), {(int64_t) spec.n_features, n_embd}, 0);
    output_norm_enc = create(tn(LLM_TENSOR_ENC_OUTPUT_NORM, "weight"), {n_embd}, 0);
    output_norm     = create(tn(LLM_TENSOR_OUTPUT_NORM,     "weight"), {n_embd}, 0);
    tok_embd        = create(tn(LLM_TENSOR_TOKEN_EMBD,      "weight"), {n_embd, n_vocab}, optional);
    output          = create(tn(LLM_TENSOR_OUTPUT,          "weight"), {n_embd, n_draft}, optional);
    if (output == nullptr && (d2t != nullptr || tok_embd != nullptr)) {
        refuse(std::string("it has ") + (d2t != nullptr ? "d2t" : "token_embd.weight") + " but no output.weight: " +
                (d2t != nullptr ? "the target's own output has the whole vocabulary" : "is its output the target's, or its embeddings?"));
    }

    const bool has_chain = has("markov_w1.weight"), has_selector = has("selector_hidden.weight");
    if (has_chain) {
        const int64_t rank = ml->get_tensor_meta("markov_w1.weight")->ne[0];
        dspark_markov_w1 = create(tn(LLM_TENSOR_DSPARK_MARKOV_W1, "weight"), {rank, n_vocab}, 0);
        dspark_markov_w2 = create(tn(LLM_TENSOR_DSPARK_MARKOV_W2, "weight"), {rank, n_draft}, 0);
        dspark_conf_proj   = create(tn(LLM_TENSOR_DSPARK_CONF_PROJ, "weight"), {n_embd + rank, 1}, optional);
        dspark_conf_proj_b = create(tn(LLM_TENSOR_DSPARK_CONF_PROJ, "bias"),   {1}, optional);
        if (n_slots > (uint32_t) LLAMA_SPEC_DFLASH_MAX_CHAIN) {
            refuse("dflash.block_size is " + std::to_string(n_slots) + ", and with a Markov head at most " +
                    std::to_string(LLAMA_SPEC_DFLASH_MAX_CHAIN));
        }
        spec.guesses_behind = true;
    }
    check(flag_fault(*ml, "dflash.sample_from_anchor", &spec.guesses_behind));
    if (n_slots < 2 && !spec.guesses_behind) {
        refuse("dflash.block_size is 1: the slot of the last token, and none to guess");
    }
    if (has_selector) {
        check_selector(hparams, n_draft);
        const int64_t rank = hparams.dflash_selector_rank;
        if (spec.guesses_behind || has_chain) {
            refuse("it has a selector and a Markov head, or a selector that samples from the anchor");
        }
        dflash_selector_prev   = create(tn(LLM_TENSOR_DFLASH_SELECTOR_PREV,   "weight"), {rank, n_vocab}, 0);
        dflash_selector_next   = create(tn(LLM_TENSOR_DFLASH_SELECTOR_NEXT,   "weight"), {rank, n_vocab}, 0);
        dflash_selector_hidden = create(tn(LLM_TENSOR_DFLASH_SELECTOR_HIDDEN, "weight"), {n_embd, rank}, 0);
    }

    for (int i = 0; i < n_layer; ++i) {
        auto & layer = layers[i];
        const int64_t n_q = n_embd_head_k * n_head;

        layer.attn_norm = create(tn(LLM_TENSOR_ATTN_NORM, "weight", i), {n_embd}, 0);
        layer.wq = create(tn(LLM_TENSOR_ATTN_Q,   "weight", i), {n_embd, n_q}, 0);
        layer.wk = create(tn(LLM_TENSOR_ATTN_K,   "weight", i), {n_embd, n_embd_k_gqa}, 0);
        // Optional: without it the values are the keys.
        layer.wv = create(tn(LLM_TENSOR_ATTN_V,   "weight", i), {n_embd, n_embd_v_gqa}, optional);
        layer.wo = create(tn(LLM_TENSOR_ATTN_OUT, "weight", i), {n_q, n_embd}, 0);
        layer.wq_b = create(tn(LLM_TENSOR_ATTN_Q,   "bias", i), {n_q}, optional);
        layer.wk_b = create(tn(LLM_TENSOR_ATTN_K,   "bias", i), {n_embd_k_gqa}, optional);
        layer.wv_b = create(tn(LLM_TENSOR_ATTN_V,   "bias", i), {n_embd_v_gqa}, optional);
        layer.wo_b = create(tn(LLM_TENSOR_ATTN_OUT, "bias", i), {n_embd}, optional);
        layer.attn_q_norm    = create(tn(LLM_TENSOR_ATTN_Q_NORM,    "weight", i), {n_embd_head_k}, 0);
        layer.attn_k_norm    = create(tn(LLM_TENSOR_ATTN_K_NORM,    "weight", i), {n_embd_head_k}, 0);
        layer.attn_sinks     = create(tn(LLM_TENSOR_ATTN_SINKS,     "weight", i), {n_head}, optional);
        layer.attn_post_norm = create(tn(LLM_TENSOR_ATTN_POST_NORM, "weight", i), {n_embd}, optional);

        layer.ffn_norm = create(tn(LLM_TENSOR_FFN_NORM, "weight", i), {n_embd}, 0);
        layer.ffn_gate = create(tn(LLM_TENSOR_FFN_GATE, "weight", i), {n_embd, n_ff}, 0);
        layer.ffn_down = create(tn(LLM_TENSOR_FFN_DOWN, "weight", i), {n_ff, n_embd}, 0);
        layer.ffn_up   = create(tn(LLM_TENSOR_FFN_UP,   "weight", i), {n_embd, n_ff}, 0);
        layer.ffn_post_norm = create(tn(LLM_TENSOR_FFN_POST_NORM,   "weight", i), {n_embd}, optional);
        layer.out_scale     = create(tn(LLM_TENSOR_LAYER_OUT_SCALE, "weight", i), {1}, optional);
        layer.rope_freqs    = create(tn(LLM_TENSOR_ROPE_FREQS, "weight", i), {n_rot/2}, optional | (i > 0 ? TENSOR_DUPLICATED : 0));

        if (has_selector) {
            const int64_t n_kernel = hparams.dflash_conv_kernel_size, n_groups = n_embd / hparams.dflash_conv_group_size;
            layer.dflash_attn_conv_base = create(tn(LLM_TENSOR_DFLASH_ATTN_CONV_BASE, i), {n_embd, n_kernel, 2}, 0);
            layer.dflash_attn_conv_proj = create(tn(LLM_TENSOR_DFLASH_ATTN_CONV_PROJ, "weight", i), {n_embd, 2 * n_kernel * n_groups}, 0);
            layer.dflash_ffn_conv_base  = create(tn(LLM_TENSOR_DFLASH_FFN_CONV_BASE,  i), {n_embd, n_kernel, 2}, 0);
            layer.dflash_ffn_conv_proj  = create(tn(LLM_TENSOR_DFLASH_FFN_CONV_PROJ,  "weight", i), {n_embd, 2 * n_kernel * n_groups}, 0);
        }
    }
    std::set<std::string> ids = skip_ngrams(*ml);
    known.insert(ids.begin(), ids.end());
    check(leftover_fault(*ml, known, "docs/dflash.md"));
    ids.insert("d2t");
    check(types_fault(*ml, ids));
    const int n_confidence = dspark_conf_proj != nullptr ? 1 : 0;
    const uint32_t k = has_selector ? hparams.dflash_selector_top_k : 0;
    hparams.n_embd_out_impl = has_selector ? k + k * k : 2 * LLAMA_SPEC_DFLASH_CANDIDATES + n_confidence;
}

// ---- the graph

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

// A batch has either rows with features of the target, whose keys and values are stored, or tokens, which form blocks
// of slots to predict.
struct dflash_graph : public llm_graph_context {
    dflash_graph(const llama_model_dflash & model, const llm_graph_params & params);

  private:
    const llama_model_dflash & model;
    const llama_model * other;      // the target, if a tensor is shared
    llm_graph_input_attn_kv      * attn      = nullptr;     // one of the two is set
    llm_graph_input_attn_kv_iswa * attn_iswa = nullptr;
    ggml_tensor * positions = nullptr, * tokens = nullptr, * out_ids = nullptr;
    // The batch's sequences; each has one block, and all blocks have the same number of slots. The engine also builds
    // graphs to measure memory, which match no batch of ours; those count as one block.
    int64_t n_blocks = 1;
    const draft_output * part = draft_output_in_use();  // a part of the vocabulary, or NULL for the whole

    ggml_tensor * project(ggml_tensor * w, ggml_tensor * bias, ggml_tensor * cur);
    ggml_tensor * embed();
    ggml_tensor * rotate(ggml_tensor * cur);
    std::pair<ggml_tensor *, ggml_tensor *> keys_and_values(ggml_tensor * cur, int il);
    void inject();
    void store(ggml_tensor * k, ggml_tensor * v, int il);
    ggml_tensor * attention(ggml_tensor * cur, int il);
    ggml_tensor * block(ggml_tensor * cur, int il);

    // The heads: from the last layer's rows to the draft's result.
    ggml_tensor * convolve(ggml_tensor * cur, ggml_tensor * dynamic, ggml_tensor * base, int side);
    void finish(ggml_tensor * cur);
    void chain(ggml_tensor * hidden, ggml_tensor * logits);
    void select(ggml_tensor * hidden, ggml_tensor * logits);
    void give(ggml_tensor * result, ggml_tensor * logits, bool is_mapped = false);
    // Converts logits of the draft's ids to the target's, and looks up the target's tables for the slots of a part.
    ggml_tensor * in_target(ggml_tensor * logits);
    ggml_tensor * ids_at(ggml_tensor * places);
    ggml_tensor * of_slots(ggml_tensor * of_all);
    ggml_tensor * join(const std::vector<ggml_tensor *> & parts, size_t first, size_t end);
    ggml_tensor * block_major(ggml_tensor * cur);
    ggml_tensor * first_tokens();
    bool wants_logits() const { return (cparams.nextn_layer_offset & LLAMA_SPEC_DFLASH_CANDIDATES_ONLY) == 0; }
};

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

} // namespace

std::unique_ptr<llm_graph_context> llama_model_dflash::build_arch_graph(const llm_graph_params & params) const {
    if (params.gtype == LLM_GRAPH_TYPE_ENCODER) {
        throw std::runtime_error("a DFlash draft has no encoder here: decode() takes the features");
    }
    return std::make_unique<dflash_graph>(*this, params);
}

// ---- the kind

namespace {

const llama_model_dflash & dflash_of(const llama_model * model) {
    return *static_cast<const llama_model_dflash *>(model);
}

std::string at(int32_t i) {
    return "token " + std::to_string(i) + " of the batch ";
}

class dflash_context : public draft_context {
public:
    dflash_context(const llama_model * draft, const llama_model * target)
        : model(dflash_of(draft)), n_draft(n_vocab_draft(draft)), ids_of(target_ids(draft)), whole(whole_output(draft, target)),
          k((int32_t) (model.dflash_selector_hidden != nullptr ? model.hparams.dflash_selector_top_k : 0)) {}

    void prepare(llama_context * ctx) override {
        n_ubatch = (int32_t) llama_n_ubatch(ctx);
        llama_set_causal_attn(ctx, model.spec.is_causal);
        llama_set_embeddings_nextn(ctx, true, /* masked */ true);
    }

    std::string refuse(const llama_spec_batch & batch) const override {
        if ((batch.ids == nullptr) == (batch.rows == nullptr) || batch.embd != nullptr) {
            return "a DFlash draft takes rows of the target alone, or ids alone";
        }
        if (batch.n_tokens > n_ubatch) {
            // Otherwise a slot would not see all others; the engine asserts the same limit for rows.
            return "the batch has " + std::to_string(batch.n_tokens) + " tokens, more than the n_ubatch = " + std::to_string(n_ubatch) +
                " that a DFlash draft computes at once";
        }
        if (batch.ids == nullptr) {
            const auto * end = batch.output + batch.n_tokens;
            const auto * asked = std::find_if(batch.output, end, [](int8_t o) { return o != 0; });
            return asked == end ? "" : at((int32_t) (asked - batch.output)) + "asks for an output, which a row of the target has none of";
        }
        return block_fault(batch);
    }

    void set_mode(llama_context * ctx, const llama_spec_batch & batch) override {
        llama_set_nextn_layer_offset(ctx, batch.candidates_only ? LLAMA_SPEC_DFLASH_CANDIDATES_ONLY : 0);
        n_slots = batch.ids != nullptr ? length_of_first(batch) : 1;
    }

    int32_t n_candidates() const override { return std::max(k, (int32_t) LLAMA_SPEC_DFLASH_CANDIDATES); }
    int32_t n_row() const override { return model.dspark_conf_proj != nullptr ? 1 : 0; }
    const ggml_tensor * output() const override { return whole; }
    int32_t least_rows() const override { return std::max(k, 1); }  // a selector needs k ids to choose from

    int32_t read(llama_context * ctx, int32_t i, int32_t given, int32_t n_max, int32_t * ids, float * probabilities,
                 const float ** row, const draft_output * part) const override {
        const float * found = llama_get_embeddings_nextn_ith(ctx, i);
        if (found == nullptr) {
            *row = nullptr;
            return 0;
        }
        *row = found + 2 * LLAMA_SPEC_DFLASH_CANDIDATES;
        if (k == 0) {
            return read_candidates(found, LLAMA_SPEC_DFLASH_CANDIDATES, { n_draft, ids_of, part }, n_max, ids, probabilities);
        }
        *row = found;
        const int32_t before = i % n_slots > first_guess() ? place_of(llama_get_embeddings_nextn_ith(ctx, i - 1), given) : 0;
        return read_scores(found, found + k + (size_t) before * k, n_max, ids, probabilities);
    }

private:
    const llama_model_dflash & model;
    int32_t n_draft, n_ubatch = 0, n_slots = 1;
    std::vector<int32_t> ids_of;    // the target's id for each draft id; empty if they are the same
    const ggml_tensor * whole;
    int32_t k;                      // the selector's candidates; 0 without one

    int32_t first_guess() const { return model.spec.guesses_behind ? 0 : 1; }

    static int32_t length_of_first(const llama_spec_batch & batch) {
        int32_t n = 1;
        while (n < batch.n_tokens && batch.seq[n] == batch.seq[0]) {
            ++n;
        }
        return n;
    }

    // Slots of a block see each other, and the heads rely on that: a batch has one block for each sequence, all of
    // equal length.
    std::string block_fault(const llama_spec_batch & batch) const {
        const int32_t n = length_of_first(batch);
        if (n > (int32_t) model.hparams.dflash_block_size) {
            return "a block has " + std::to_string(n) + " slots, more than the " + std::to_string(model.hparams.dflash_block_size) +
                " that the draft was trained with";
        }
        if (n <= first_guess()) {
            return "a block has one slot, that of the last token, and guesses nothing";
        }
        std::vector<int32_t> seqs;
        for (int32_t i = 0; i < batch.n_tokens; ++i) {
            if (i % n == 0) {
                if (std::find(seqs.begin(), seqs.end(), batch.seq[i]) != seqs.end()) {
                    return at(i) + "begins another block of sequence " + std::to_string(batch.seq[i]);
                }
                seqs.push_back(batch.seq[i]);
            } else if (batch.seq[i] != batch.seq[i - 1] || batch.pos[i] != batch.pos[i - 1] + 1) {
                return at(i) + "does not follow the one before: a DFlash draft takes blocks of equal lengths, one of each sequence, "
                    "and the first has " + std::to_string(n) + " slots";
            }
            if ((batch.output[i] != 0) != (i % n >= first_guess())) {
                return at(i) + (batch.output[i] != 0 ? "asks for an output, and it guesses nothing" : "is a guess, and asks for no output");
            }
        }
        return batch.n_tokens % n == 0 ? "" : "the last block of the batch is shorter than the others, of " + std::to_string(n) + " slots";
    }

    // The index of `given` among the previous slot's candidates; 0 if it is not among them.
    int32_t place_of(const float * before, int32_t given) const {
        int32_t place = 0;
        for (int32_t c = 0; before != nullptr && c < k; ++c) {
            if ((int32_t) before[c] == given) {
                place = c;
            }
        }
        return place;
    }

    int32_t read_scores(const float * found, const float * scores, int32_t n_max, int32_t * ids, float * probabilities) const {
        std::vector<int32_t> order((size_t) k);
        std::iota(order.begin(), order.end(), 0);
        for (int32_t c = 0; c < k; ++c) {
            if (!(found[c] >= 0.0f && found[c] < (float) model.vocab.n_tokens())) {
                throw std::runtime_error("the draft chose no token");
            }
            if (std::isnan(scores[c])) {
                throw std::runtime_error("the draft computed NaN: the target's rows or its own weights are NaN; convert the draft again");
            }
        }
        std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return scores[a] > scores[b]; });
        float sum = 0.0f;
        for (int32_t c : order) {
            sum += std::exp(scores[c] - scores[order[0]]);
        }
        const int32_t n = std::min(n_max, k);
        for (int32_t c = 0; c < n; ++c) {
            ids[c] = (int32_t) found[order[(size_t) c]];
            probabilities[c] = std::exp(scores[order[(size_t) c]] - scores[order[0]]) / sum;
        }
        return n;
    }
};

} // namespace

const draft_kind llama_spec::DFLASH_KIND = {
    "DFlash",
    [](const llama_model * draft, const llama_model * target) { return pair_mismatch(draft, target, draft->hparams.n_embd); },
    [](const llama_model * draft, const llama_model * target) -> std::unique_ptr<draft_context> {
        return std::make_unique<dflash_context>(draft, target);
    },
    [](const llama_model * draft) -> llama_spec_block {
        const auto & model = dflash_of(draft);
        const int32_t n_window = model.hparams.swa_type == LLAMA_SWA_TYPE_NONE ? 0 : (int32_t) model.hparams.n_swa;
        bool is_all = n_window > 0;
        for (uint32_t il = 0; il < model.hparams.n_layer(); ++il) {
            is_all = is_all && model.hparams.is_swa(il);
        }
        return { (int32_t) model.hparams.dflash_block_size, model.spec.mask, is_all ? n_window : 0, model.spec.guesses_behind,
            model.dspark_conf_proj != nullptr };
    },
};
