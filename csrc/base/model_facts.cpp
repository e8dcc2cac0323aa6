#include "abi/model_facts.h"

#include "hooks/llama-spec-hooks.h"
#include "hooks/state_scan.h"

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

bool llama_spec_arch_can_roll_back(const llama_model * model) {
    return llama_spec_has_snapshots(*model);
}

llama_spec::state_sizes llama_spec_state_sizes(const llama_model * model) {
    const llama_hparams & h = model->hparams;
    llama_spec::state_sizes sizes = {};
    if (h.vocab_only || !(llm_arch_is_recurrent(model->arch) || llm_arch_is_hybrid(model->arch)) || model->arch == LLM_ARCH_DEEPSEEK4) {
        return sizes;
    }
    // A snapshot is a state of each layer; where states are scanned in place, an older one and a log of tokens.
    const pyllama_spec_scan_shape scan = llama_spec::scan_shape(*model, 1);
    const bool     is_logged = scan.n_heads > 0;
    const uint64_t n_log     = is_logged ? (uint64_t) (scan.n_heads * pyllama_spec_token_log(&scan)) : 0;
    const uint64_t n_older   = is_logged ? (uint64_t) pyllama_spec_cell_log(&scan) - n_log + h.n_embd_s() : 0;
    const bool is_nemotron = model->arch == LLM_ARCH_NEMOTRON_H || model->arch == LLM_ARCH_NEMOTRON_H_MOE;
    for (uint32_t il = 0; il < h.n_layer(); ++il) {
        // The filters of llama_model::create_memory.
        const bool has_state = llm_arch_is_recurrent(model->arch) || model->arch == LLM_ARCH_FALCON_H1 ||
            (h.is_recr(il) && (!is_nemotron || h.n_ff(il) == 0));
        if (has_state) {
            const uint64_t windows = h.n_embd_r() + (h.ple_conv_state() > 0 && h.is_ple(il) ? h.ple_conv_state() : 0);
            sizes.state          += sizeof(float) * (windows + h.n_embd_s());
            sizes.snapshot_base  += sizeof(float) * n_older;
            sizes.snapshot_token += sizeof(float) * (windows + (is_logged ? n_log : h.n_embd_s()));
        }
    }
    return sizes;
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
