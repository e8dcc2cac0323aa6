// Replaces the engine's src/models/dflash.cpp for DFlash drafts: reads the file. docs/dflash.md describes the
// computation, and dflash_graph.cpp builds it.

#include "drafts/dflash/dflash_graph.h"
#include "drafts/draft_pair.h"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <string>

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
    std::vector<std::string> table;
    check(ngrams_fault(*ml, &spec.ngrams, &table));
    known.insert(table.begin(), table.end());
    check(leftover_fault(*ml, known, "docs/dflash.md"));
    table.push_back("d2t");
    check(types_fault(*ml, std::set<std::string>(table.begin(), table.end())));
    const int n_confidence = dspark_conf_proj != nullptr ? 1 : 0;
    const uint32_t k = has_selector ? hparams.dflash_selector_top_k : 0;
    hparams.n_embd_out_impl = has_selector ? k + k * k : 2 * LLAMA_SPEC_DFLASH_CANDIDATES + n_confidence;
}

std::unique_ptr<llm_graph_context> llama_model_dflash::build_arch_graph(const llm_graph_params & params) const {
    if (params.gtype == LLM_GRAPH_TYPE_ENCODER) {
        throw std::runtime_error("a DFlash draft has no encoder here: decode() takes the features");
    }
    return std::make_unique<dflash_graph>(*this, params);
}
