// The MTP head that a model's own file carries, as a kind of draft: which heads this version knows, and a head's part of
// a context. Its graph is the engine's own, and reads a token together with a row: the target's row of the token before,
// or the head's own one.

#include "drafts/draft_kind.h"
#include "drafts/draft_pair.h"
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

// How many of the likeliest tokens are read of a row: the best one, and one beside it for who mixes distributions.
constexpr int32_t N_CANDIDATES = 2;

// Architectures whose heads tests/parity/test_mtp_reference.py computes again. A head of another one is refused by name.
constexpr llm_arch KNOWN[] = {
    LLM_ARCH_QWEN35, LLM_ARCH_QWEN35MOE, LLM_ARCH_QWEN3NEXT, LLM_ARCH_DEEPSEEK2, LLM_ARCH_GLM4_MOE, LLM_ARCH_COHERE2MOE,
    LLM_ARCH_NEMOTRON_H_MOE, LLM_ARCH_DEEPSEEK32, LLM_ARCH_GLM_DSA,
};

class mtp_context : public draft_context {
public:
    explicit mtp_context(const llama_model * model)
        : n_vocab((int32_t) model->vocab.n_tokens()), n_embd((int32_t) model->hparams.n_embd_out()) {}

    void prepare(llama_context * ctx) override {
        llama_set_embeddings_nextn(ctx, true, /* masked */ true);
    }

    std::string refuse(const llama_spec_batch & batch) const override {
        return batch.ids == nullptr || batch.rows == nullptr ? "an MTP head takes an id and a row of every token" : "";
    }

    // Its own rows are of the same form as the target's.
    void set_mode(llama_context *, const llama_spec_batch &) override {}

    int32_t n_candidates() const override { return N_CANDIDATES; }
    int32_t n_row() const override { return n_embd; }
    int32_t n_row_inp() const override { return n_embd; }

    int32_t read(llama_context * ctx, int32_t i, int32_t /* given */, int32_t n_max, int32_t * ids, float * probabilities,
                 const float ** row) const override {
        const float * logits = llama_get_logits_ith(ctx, i);
        *row = logits != nullptr ? llama_get_embeddings_nextn_ith(ctx, i) : nullptr;
        if (*row == nullptr) {
            return 0;
        }
        return pyllama_spec::likeliest(logits, n_vocab, nullptr, std::min(n_max, N_CANDIDATES), ids, probabilities);
    }

private:
    int32_t n_vocab, n_embd;
};

class mtp : public draft_kind {
public:
    const char * name() const override { return "an MTP head"; }

    std::string mismatch(const llama_model * draft, const llama_model * target) const override {
        const std::string fault = head_fault(draft);
        return !fault.empty() || draft == target ? fault : head_mismatch(draft, target);
    }

    std::unique_ptr<draft_context> open(const llama_model * draft, const llama_model *) const override {
        const std::string fault = head_fault(draft);
        if (!fault.empty()) {
            throw std::runtime_error(fault);
        }
        return std::make_unique<mtp_context>(draft);
    }
};

} // namespace

bool knows_head(const std::string & arch) {
    return std::any_of(std::begin(KNOWN), std::end(KNOWN), [&](llm_arch known) { return arch == llm_arch_name(known); });
}

int32_t n_heads(const llama_model * model) {
    // Some models count a layer of another kind by the same key.
    return model->hparams.router_layer >= 0 ? 0 : (int32_t) model->hparams.n_layer_nextn;
}

std::string head_fault(const llama_model * model) {
    const std::string arch = llm_arch_name(model->arch);
    const int32_t n = n_heads(model);
    if (n == 0) {
        return "the file has no MTP head";
    }
    if (!knows_head(arch)) {
        return "the MTP head of architecture '" + arch + "' is not supported by this version";
    }
    if (n > 1) {
        return "the file has " + std::to_string(n) + " MTP heads, and this version drafts with one";
    }
    const int32_t il = (int32_t) model->hparams.n_layer();
    const bool has_layer = (size_t) il < model->layers.size();  // not of a vocabulary alone
    const llama_layer_nextn head = has_layer ? model->layers[(size_t) il].nextn : llama_layer_nextn{};
    const std::string blk = "blk." + std::to_string(il) + ".nextn.";
    for (const auto & [name, tensor] : { std::pair<const char *, const ggml_tensor *>{ "eh_proj", head.eh_proj },
                                         { "enorm", head.enorm }, { "hnorm", head.hnorm } }) {
        if (tensor == nullptr) {
            return "the MTP head was not loaded, or is not whole: there is no tensor " + blk + name + ".weight";
        }
    }
    return "";
}

bool is_head_alone(const llama_model * model) {
    // Every layer of every model with heads begins with this norm.
    return n_heads(model) > 0 && model->hparams.n_layer() > 0 && !model->layers.empty() && model->layers[0].attn_norm == nullptr;
}

head_weights weights_of_head(const llama_model * model) {
    head_weights out;
    if (!head_fault(model).empty()) {
        return out;     // of some a tensor or two is loaded all the same
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

const draft_kind & mtp_kind() {
    static const mtp kind;
    return kind;
}

} // namespace llama_spec
