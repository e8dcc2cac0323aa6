#include "abi/model_facts.h"

#include "hooks/llama-spec-hooks.h"

#include "llama-arch.h"
#include "llama-model.h"

#include <climits>

static bool is_device(ggml_backend_dev_t dev) {
    const auto type = ggml_backend_dev_type(dev);
    return type != GGML_BACKEND_DEVICE_TYPE_CPU && type != GGML_BACKEND_DEVICE_TYPE_ACCEL;
}

const char * llama_spec_arch_name(const llama_model * model) {
    return llm_arch_name(model->arch);
}

bool llama_spec_arch_can_roll_back(const llama_model * model) {
    return llama_spec_has_snapshots(*model);
}

uint64_t llama_spec_state_bytes(const llama_model * model) {
    const llama_hparams & h = model->hparams;
    if (h.vocab_only || !(llm_arch_is_recurrent(model->arch) || llm_arch_is_hybrid(model->arch)) || model->arch == LLM_ARCH_DEEPSEEK4) {
        return 0;
    }
    const bool is_nemotron = model->arch == LLM_ARCH_NEMOTRON_H || model->arch == LLM_ARCH_NEMOTRON_H_MOE;
    uint64_t n = 0;
    for (uint32_t il = 0; il < h.n_layer(); ++il) {
        // The filters of llama_model::create_memory.
        const bool has_state = llm_arch_is_recurrent(model->arch) || model->arch == LLM_ARCH_FALCON_H1 ||
            (h.is_recr(il) && (!is_nemotron || h.n_ff(il) == 0));
        if (has_state) {
            n += h.n_embd_r() + h.n_embd_s();
            n += h.ple_conv_state() > 0 && h.is_ple(il) ? h.ple_conv_state() : 0;
        }
    }
    return n * sizeof(float);
}

int32_t llama_spec_n_pos_per_row(const llama_model * model) {
    return (int32_t) model->hparams.n_pos_per_embd();
}

int32_t llama_spec_n_device_layers(const llama_model * model) {
    int32_t n = 0;
    if (model->devices.empty() || model->hparams.vocab_only) {
        return n;
    }
    for (int il = 0; il < (int) model->hparams.n_layer_all; ++il) {
        n += is_device(model->dev_layer(il));
    }
    return n + is_device(model->dev_output());
}

uint64_t llama_spec_key_bytes(const llama_model * model, ggml_type type, bool swa_full) {
    const llama_hparams & h = model->hparams;
    if (llm_arch_is_recurrent(model->arch) || model->arch == LLM_ARCH_DEEPSEEK4) {
        return 0;
    }
    uint64_t n = 0;
    for (uint32_t il = 0; il < h.n_layer(); ++il) {
        const bool keeps_all = h.has_kv(il) && !h.is_recr(il) && (swa_full || !h.is_swa(il));
        n += keeps_all ? (uint64_t) h.n_embd_k_gqa(il) * ggml_type_size(type) / (uint64_t) ggml_blck_size(type) : 0;
    }
    return n;
}

int32_t llama_spec_n_positions(const llama_model * model) {
    return model->pos_embd != nullptr ? (int32_t) model->pos_embd->ne[1] : INT32_MAX;
}
