// The MTP head in a model's own file, as a kind of draft: lists the heads that this version knows, and holds a head's
// part of a context. It uses the engine's graph, which reads a token together with a row: the target's row of the
// previous token, or the head's own.

#include "base/draft_output.h"
#include "drafts/draft_kind.h"
#include "kernels/likeliest.h"

#include "llama-arch.h"
#include "llama-ext.h"
#include "llama-model.h"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>

namespace llama_spec {

namespace {

// Architectures whose heads tests/parity/test_mtp_reference.py recomputes, and whether a file may have several heads,
// each of which drafts one further token. Heads of other architectures are refused by name.
constexpr struct {
    llm_arch arch;
    bool     several;
} KNOWN[] = {
    { LLM_ARCH_QWEN35, false }, { LLM_ARCH_QWEN35MOE, false }, { LLM_ARCH_QWEN3NEXT, false }, { LLM_ARCH_DEEPSEEK2, false },
    { LLM_ARCH_GLM4_MOE, false }, { LLM_ARCH_COHERE2MOE, false }, { LLM_ARCH_NEMOTRON_H_MOE, false },
    { LLM_ARCH_DEEPSEEK32, false }, { LLM_ARCH_GLM_DSA, false }, { LLM_ARCH_BAILINGMOE3, false }, { LLM_ARCH_QWEN4EXP, false },
    { LLM_ARCH_DEEPSEEK4, false }, { LLM_ARCH_GLM5_NEXT, false },
    { LLM_ARCH_STEP35, true }, { LLM_ARCH_MIMO2, true }, { LLM_ARCH_HY_V3, true },
};

// Returns the file's name of a matrix that a head's block lacks; empty if all are there. It checks matrices that the
// loader treats as optional because other layers use different ones.
std::string missing_matrix(const llama_model * model, const llama_layer & layer) {
    using tensors = std::initializer_list<std::pair<const char *, const ggml_tensor *>>;
    const auto first_missing = [](const tensors & wanted) {
        for (const auto & [name, tensor] : wanted) {
            if (tensor == nullptr) {
                return std::string(name);
            }
        }
        return std::string();
    };
    const tensors head = { { "nextn.eh_proj", layer.nextn.eh_proj }, { "nextn.enorm", layer.nextn.enorm },
                           { "nextn.hnorm", layer.nextn.hnorm } };
    const tensors dense = { { "ffn_gate", layer.ffn_gate }, { "ffn_up", layer.ffn_up }, { "ffn_down", layer.ffn_down } };
    const tensors experts = { { "ffn_up_exps", layer.ffn_gate_up_exps != nullptr ? layer.ffn_gate_up_exps : layer.ffn_up_exps },
                              { "ffn_gate_exps", layer.ffn_gate_up_exps != nullptr ? layer.ffn_gate_up_exps : layer.ffn_gate_exps },
                              { "ffn_down_exps", layer.ffn_down_exps }, { "ffn_gate_shexp", layer.ffn_gate_shexp },
                              { "ffn_up_shexp", layer.ffn_up_shexp }, { "ffn_down_shexp", layer.ffn_down_shexp } };
    std::string missing = first_missing(head);
    if (missing.empty() && model->arch == LLM_ARCH_MIMO2) {
        missing = first_missing({ { "attn_qkv", layer.wqkv } });
        missing = missing.empty() ? first_missing(dense) : missing;
    } else if (missing.empty() && (model->arch == LLM_ARCH_STEP35 || model->arch == LLM_ARCH_HY_V3)) {
        missing = first_missing(layer.ffn_gate_inp != nullptr ? experts : dense);
    }
    return missing;
}

// Describes a property of the block that the engine's graph of a head cannot handle and asserts on; empty if there is
// none.
std::string odd_block(const llama_model * model, size_t il) {
    const llama_hparams & h = model->hparams;
    const std::string block = "the MTP head of blk." + std::to_string(il);
    if (model->arch == LLM_ARCH_DEEPSEEK4 && h.dsv4_compress_ratios[il] != 0) {
        return block + " compresses its keys, by a ratio of " + std::to_string(h.dsv4_compress_ratios[il]) + ", and no graph does so";
    }
    if (model->arch == LLM_ARCH_DEEPSEEK4 && il < h.dsv4_hash_layer_count) {
        return block + " chooses its experts by the token, and no graph does so";
    }
    return "";
}

// The model's output matrix, if all heads use it and it lies in the host's memory.
const ggml_tensor * shared_output(const llama_model * model) {
    for (size_t il = model->hparams.n_layer(); il < model->layers.size(); ++il) {
        if (model->layers[il].nextn.shared_head_head != nullptr) {
            return nullptr;
        }
    }
    return in_host_memory(model->output);
}

class mtp_context : public draft_context {
public:
    explicit mtp_context(const llama_model * model)
        : n_vocab((int32_t) model->vocab.n_tokens()), n_embd((int32_t) model->hparams.n_embd_out()), n_heads(llama_spec::n_heads(model)),
          shared(shared_output(model)) {}

    void prepare(llama_context * ctx) override {
        llama_set_embeddings_nextn(ctx, true, /* masked */ true);
    }

    std::string refuse(const llama_spec_batch & batch) const override {
        if (batch.head < 0 || batch.head >= n_heads) {
            return "head " + std::to_string(batch.head) + " is outside 0 .. " + std::to_string(n_heads - 1);
        }
        return (batch.ids == nullptr) == (batch.embd == nullptr) || batch.rows == nullptr ? "an MTP head takes an id and a row of every token" : "";
    }

    // The head's own rows have the same form as the target's.
    void set_mode(llama_context * ctx, const llama_spec_batch & batch) override {
        llama_set_nextn_layer_offset(ctx, batch.head);
    }

    int32_t n_candidates() const override { return HEAD_CANDIDATES; }
    int32_t n_row() const override { return n_embd; }
    int32_t n_row_inp() const override { return n_embd; }
    const ggml_tensor * output() const override { return shared; }

    int32_t read(llama_context * ctx, int32_t i, int32_t /* given */, int32_t n_max, int32_t * ids, float * probabilities,
                 const float ** row, const draft_output * /* part */) const override {
        n_max = std::min(n_max, HEAD_CANDIDATES);
        const int32_t n_held = held_candidates(ctx, i, n_max, ids, probabilities);
        const float * logits = n_held < 0 ? llama_get_logits_ith(ctx, i) : nullptr;
        *row = n_held >= 0 || logits != nullptr ? llama_get_embeddings_nextn_ith(ctx, i) : nullptr;
        if (*row == nullptr) {
            return 0;
        }
        return n_held >= 0 ? n_held : pyllama_spec::likeliest(logits, n_vocab, nullptr, n_max, ids, probabilities);
    }

private:
    int32_t n_vocab, n_embd, n_heads;
    const ggml_tensor * shared;
};

} // namespace

int32_t most_heads(const std::string & arch) {
    for (const auto & known : KNOWN) {
        if (arch == llm_arch_name(known.arch)) {
            return known.several ? LLAMA_MAX_LAYERS : 1;
        }
    }
    return 0;
}

int32_t n_heads(const llama_model * model) {
    // Some models use the same key to count a layer of another kind.
    return model->hparams.router_layer >= 0 ? 0 : (int32_t) model->hparams.n_layer_nextn;
}

std::string head_fault(const llama_model * model) {
    const std::string arch = llm_arch_name(model->arch);
    const int32_t n = n_heads(model);
    if (n == 0) {
        return "the file has no MTP head";
    }
    const int32_t n_most = most_heads(arch);
    if (n_most == 0) {
        return "the MTP head of architecture '" + arch + "' is not supported by this version";
    }
    if (n > n_most) {
        return "the file has " + std::to_string(n) + " MTP heads, and this version drafts with one of architecture '" + arch + "'";
    }
    const size_t n_layer = model->hparams.n_layer();
    for (size_t il = n_layer; il < n_layer + (size_t) n; ++il) {
        static const llama_layer none;
        const bool has_layer = il < model->layers.size();   // false with vocab_only
        const llama_layer & layer = has_layer ? model->layers[il] : none;
        const std::string missing = missing_matrix(model, layer);
        if (!missing.empty()) {
            return "the MTP head was not loaded, or is not whole: there is no tensor blk." + std::to_string(il) + "." + missing + ".weight";
        }
        const std::string odd = odd_block(model, il);
        if (!odd.empty()) {
            return odd;
        }
        if (layer.nextn.shared_head_head == nullptr && model->output == nullptr) {
            return "the MTP head has no output matrix: there is neither blk." + std::to_string(il) +
                ".nextn.shared_head_head.weight nor output.weight";
        }
    }
    return "";
}

bool is_head_alone(const llama_model * model) {
    if (n_heads(model) == 0 || model->hparams.n_layer() == 0 || model->layers.empty()) {
        return false;
    }
    // Every layer of every model with heads begins with one of these norms.
    return model->layers[0].attn_norm == nullptr && model->layers[0].hc_attn_norm == nullptr;
}

head_weights weights_of_head(const llama_model * model) {
    head_weights out;
    if (!head_fault(model).empty()) {
        return out;     // an unloaded head may still have a tensor or two
    }
    std::map<ggml_type, uint64_t> by_type;
    for (int32_t il = (int32_t) model->hparams.n_layer(); il < (int32_t) model->hparams.n_layer_all; ++il) {
        const std::string prefix = "blk." + std::to_string(il) + ".";
        for (const auto & [name, tensor] : model->tensors_by_name) {
            if (name.rfind(prefix, 0) == 0) {
                out.n_bytes += ggml_nbytes(tensor);
                by_type[tensor->type] += ggml_nbytes(tensor);
            }
        }
    }
    for (const auto & [type, n] : by_type) {
        out.type = by_type.count(out.type) == 0 || n > by_type[out.type] ? type : out.type;
    }
    return out;
}

const draft_kind MTP_KIND = {
    "an MTP head",
    [](const llama_model * draft, const llama_model * target) {
        const std::string fault = head_fault(draft);
        return !fault.empty() || draft == target ? fault : head_mismatch(draft, target);
    },
    [](const llama_model * draft, const llama_model *) -> std::unique_ptr<draft_context> {
        const std::string fault = head_fault(draft);
        if (!fault.empty()) {
            throw std::runtime_error(fault);
        }
        return std::make_unique<mtp_context>(draft);
    },
    nullptr,
};

} // namespace llama_spec
