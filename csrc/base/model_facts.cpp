#include "base/model_facts.h"

#include "llama-arch.h"
#include "llama-model.h"

#include <algorithm>
#include <climits>

static bool is_device(ggml_backend_dev_t dev) {
    const auto type = ggml_backend_dev_type(dev);
    return type != GGML_BACKEND_DEVICE_TYPE_CPU && type != GGML_BACKEND_DEVICE_TYPE_ACCEL;
}

const char * llama_spec_arch_name(const llama_model * model) {
    return llm_arch_name(model->arch);
}

int32_t llama_spec_n_pos_per_row(const llama_model * model) {
    return (int32_t) model->hparams.n_pos_per_embd();
}

int32_t llama_spec_n_device_layers(const llama_model * model) {
    int32_t n = 0;
    for (const auto & [dev, n_layers] : llama_spec_placement(model)) {
        n += is_device(dev) ? n_layers : 0;
    }
    return n;
}

std::vector<std::pair<ggml_backend_dev_t, int32_t>> llama_spec_placement(const llama_model * model) {
    std::vector<std::pair<ggml_backend_dev_t, int32_t>> out;
    if (model->hparams.vocab_only) {
        return out;
    }
    const auto put = [&](ggml_backend_dev_t dev) {
        const auto found = std::find_if(out.begin(), out.end(), [&](const auto & one) { return one.first == dev; });
        if (found == out.end()) {
            out.emplace_back(dev, 1);
        } else {
            ++found->second;
        }
    };
    for (int il = 0; il < (int) model->hparams.n_layer_all; ++il) {
        put(model->dev_layer(il));
    }
    put(model->dev_output());
    return out;
}

uint64_t llama_spec_key_bytes(const llama_model * model, ggml_type type, bool swa_full, bool is_head) {
    const llama_hparams & h = model->hparams;
    if (llm_arch_is_recurrent(model->arch) || model->arch == LLM_ARCH_DEEPSEEK4) {
        return 0;
    }
    uint64_t n = 0;
    for (uint32_t il = is_head ? h.n_layer() : 0; il < (is_head ? h.n_layer_all : h.n_layer()); ++il) {
        const bool keeps_all = h.has_kv(il) && !h.is_recr(il) && (swa_full || !h.is_swa(il));
        n += keeps_all ? (uint64_t) h.n_embd_k_gqa(il) * ggml_type_size(type) / (uint64_t) ggml_blck_size(type) : 0;
    }
    return n;
}

uint32_t llama_spec_odd_head(const llama_model * model, ggml_type type_k) {
    const llama_hparams & h = model->hparams;
    for (uint32_t il = 0; il < h.n_layer(); ++il) {
        if (h.has_kv(il) && !h.is_recr(il) && h.n_embd_head_k(il) % (uint32_t) ggml_blck_size(type_k) != 0) {
            return h.n_embd_head_k(il);
        }
    }
    return 0;
}

int32_t llama_spec_n_positions(const llama_model * model) {
    return model->pos_embd != nullptr ? (int32_t) model->pos_embd->ne[1] : INT32_MAX;
}
