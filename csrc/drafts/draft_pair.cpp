#include "drafts/draft_kind.h"

#include "llama-model.h"
#include "llama-model-loader.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <stdexcept>

namespace llama_spec {

namespace {

constexpr int64_t MAX_PADDING = 128;    // maximum difference in padding between vocabularies of one family

std::string differ(const std::string & what, int64_t wanted, int64_t found) {
    return "the draft was made for a target with " + what + " " + std::to_string(wanted) + ", this one has " + std::to_string(found);
}

std::string vocabulary_mismatch(const llama_model * draft, const llama_model * target, bool shares) {
    const int64_t n_draft = draft->vocab.n_tokens(), n_target = target->vocab.n_tokens();
    if (std::abs(n_draft - n_target) > (shares ? 0 : MAX_PADDING)) {
        return differ("a vocabulary of", n_draft, n_target);
    }
    if (draft->vocab.get_type() == LLAMA_VOCAB_TYPE_NONE || target->vocab.get_type() == LLAMA_VOCAB_TYPE_NONE) {
        return "";
    }
    for (int32_t id = 0; id < std::min(n_draft, n_target); ++id) {
        const std::string a = draft->vocab.token_get_text(id), b = target->vocab.token_get_text(id);
        if (a != b) {
            return "the draft was made for another vocabulary: its token " + std::to_string(id) + " is '" + a + "', the target's is '" + b + "'";
        }
    }
    return "";
}

} // namespace

const draft_kind * find_draft_kind(const llama_model * model) {
    switch (model->arch) {
        case LLM_ARCH_EAGLE3: return &EAGLE3_KIND;
        case LLM_ARCH_DFLASH: return &DFLASH_KIND;
        default:              return nullptr;
    }
}

std::string draft_kind_names() {
    return std::string(EAGLE3_KIND.name) + ", " + DFLASH_KIND.name;
}

std::string pair_mismatch(const llama_model * draft, const llama_model * target, int64_t n_embd_target) {
    const int64_t n_embd = draft->hparams.n_embd, n_found = target->hparams.n_embd;
    if (n_embd_target != n_found) {
        return differ("rows of width", n_embd_target, n_found);
    }
    for (int32_t layer : draft->target_layer_ids) {
        if (layer > (int32_t) target->hparams.n_layer()) {
            return "the draft reads the input of layer " + std::to_string(layer) + ", the target has the layer inputs 0 .. " +
                std::to_string(target->hparams.n_layer());
        }
    }
    const bool has_embedding = draft->tok_embd != nullptr, shares = !has_embedding || draft->output == nullptr;
    if (shares && n_embd != n_found) {
        return std::string("the draft has no ") + (has_embedding ? "output.weight" : "token_embd.weight") +
            " of its own and is " + std::to_string(n_embd) + " wide, so that it cannot use the target's, which is " +
            std::to_string(n_found) + " wide";
    }
    return vocabulary_mismatch(draft, target, shares);
}

std::string head_mismatch(const llama_model * draft, const llama_model * target) {
    if (draft->arch != target->arch) {
        return std::string("the head was made for a target of architecture '") + llm_arch_name(draft->arch) + "', this one is '" +
            llm_arch_name(target->arch) + "'";
    }
    const llama_hparams & d = draft->hparams, & t = target->hparams;
    if (d.n_layer() != t.n_layer()) {
        return differ("as many layers as", d.n_layer(), t.n_layer());
    }
    if (d.n_embd != t.n_embd || d.n_embd_out() != t.n_embd_out()) {
        return differ("rows of width", d.n_embd_out(), t.n_embd_out());
    }
    return vocabulary_mismatch(draft, target, true);
}

const ggml_tensor * in_host_memory(const ggml_tensor * matrix) {
    if (matrix == nullptr || matrix->buffer == nullptr) {
        return nullptr;
    }
    const ggml_backend_dev_t dev = ggml_backend_buft_get_device(ggml_backend_buffer_get_type(matrix->buffer));
    return dev == nullptr || ggml_backend_dev_type(dev) == GGML_BACKEND_DEVICE_TYPE_CPU ? matrix : nullptr;
}

const ggml_tensor * whole_output(const llama_model * draft, const llama_model * target) {
    const ggml_tensor * own = draft->output != nullptr || target == nullptr ? draft->output : target->output;
    return draft->d2t == nullptr ? in_host_memory(own) : nullptr;
}

int32_t n_vocab_draft(const llama_model * draft) {
    return (int32_t) (draft->d2t != nullptr ? draft->d2t->ne[0] : draft->vocab.n_tokens());
}

std::vector<int32_t> target_ids(const llama_model * draft) {
    std::vector<int32_t> out;
    if (draft->d2t == nullptr) {
        return out;
    }
    const int64_t n_vocab = draft->vocab.n_tokens();
    std::vector<int64_t> ids((size_t) draft->d2t->ne[0]);
    ggml_backend_tensor_get(draft->d2t, ids.data(), 0, ids.size() * sizeof(int64_t));
    std::vector<bool> seen((size_t) n_vocab, false);
    for (size_t i = 0; i < ids.size(); ++i) {
        if (ids[i] < 0 || ids[i] >= n_vocab) {
            throw std::runtime_error("d2t[" + std::to_string(i) + "] = " + std::to_string(ids[i]) + " is outside the vocabulary, 0 .. " +
                    std::to_string(n_vocab - 1) + "; were its offsets not added to the draft ids?");
        }
        if (seen[(size_t) ids[i]]) {
            throw std::runtime_error("d2t has the target id " + std::to_string(ids[i]) + " twice, the second time at " + std::to_string(i) +
                    "; were its offsets not added to the draft ids?");
        }
        seen[(size_t) ids[i]] = true;
        out.push_back((int32_t) ids[i]);
    }
    return out;
}

std::string target_layers_fault(const std::string & arch, const std::vector<int32_t> & layers) {
    if (layers.empty()) {
        return arch + ".target_layers is missing or empty";
    }
    std::set<int32_t> seen;
    for (int32_t layer : layers) {
        if (layer < 0 || layer >= LLAMA_MAX_LAYERS) {
            return arch + ".target_layers has " + std::to_string(layer) + ", which is no layer";
        }
        if (!seen.insert(layer).second) {
            return arch + ".target_layers has " + std::to_string(layer) + " twice";
        }
    }
    return "";
}

std::string d2t_fault(llama_model_loader & ml, int64_t n_vocab, int64_t * n_vocab_draft) {
    *n_vocab_draft = n_vocab;
    const ggml_tensor * meta = ml.get_tensor_meta("d2t");
    if (meta == nullptr) {
        return "";
    }
    if (meta->type != GGML_TYPE_I64) {
        return std::string("d2t is ") + ggml_type_name(meta->type) + ", not I64";
    }
    *n_vocab_draft = meta->ne[0];
    if (meta->ne[0] > n_vocab) {
        return "d2t has " + std::to_string(meta->ne[0]) + " entries, more than the vocabulary's " + std::to_string(n_vocab);
    }
    return "";
}

std::string leftover_fault(const llama_model_loader & ml, const std::set<std::string> & known, const char * doc) {
    for (const auto & entry : ml.weights_map) {
        if (known.count(entry.first) == 0) {
            return "the tensor " + entry.first + " does not belong to it: is a key of " + doc + " missing that says what it is for?";
        }
    }
    return "";
}

std::string types_fault(const llama_model_loader & ml, const std::set<std::string> & ids) {
    for (const auto & entry : ml.weights_map) {
        const ggml_tensor * tensor = entry.second.tensor;
        if (ids.count(entry.first) != 0) {
            continue;
        }
        const bool is_number = tensor->type == GGML_TYPE_F32 || tensor->type == GGML_TYPE_F16 ||
                tensor->type == GGML_TYPE_BF16 || ggml_is_quantized(tensor->type);
        // Norms and biases must be f32; a matrix may have a single row, so the name decides.
        const bool is_vector = entry.first.find("norm") != std::string::npos || entry.first.find(".bias") != std::string::npos;
        if (!is_number || (is_vector && tensor->type != GGML_TYPE_F32)) {
            return "the tensor " + entry.first + " is of type " + ggml_type_name(tensor->type) +
                    (is_number ? "; a vector has to be f32" : ", which holds no weights");
        }
    }
    return "";
}

std::string layers_fault(const llama_hparams & hparams, const std::string & arch) {
    const auto differs = [&](const char * key, uint32_t first, uint32_t here) {
        return first == here ? std::string() : arch + "." + key + " differs from layer to layer: " + std::to_string(first) +
                " and " + std::to_string(here);
    };
    for (uint32_t il = 1; il < hparams.n_layer(); ++il) {
        for (const std::string & fault : {
                differs("attention.head_count",    hparams.n_head(0),    hparams.n_head(il)),
                differs("attention.head_count_kv", hparams.n_head_kv(0), hparams.n_head_kv(il)),
                differs("feed_forward_length",     hparams.n_ff(0),      hparams.n_ff(il)) }) {
            if (!fault.empty()) {
                return fault;
            }
        }
    }
    return "";
}

std::string flag_fault(const llama_model_loader & ml, const char * key, bool * out) {
    const int64_t id = gguf_find_key(ml.metadata, key);
    if (id < 0) {
        return "";
    }
    if (gguf_get_kv_type(ml.metadata, id) != GGUF_TYPE_BOOL) {
        return std::string(key) + " is not a bool";
    }
    *out = gguf_get_val_bool(ml.metadata, id);
    return "";
}

std::set<std::string> skip_ngrams(llama_model_loader & ml) {
    std::set<std::string> names;
    for (const char * name : { "ngram.keys", "ngram.ids", "ngram.p" }) {
        const auto * weight = ml.get_weight(name);
        if (weight != nullptr) {
            names.insert(name);
            // Counts the tensor as the engine does for one that it skips.
            ml.size_data -= ggml_nbytes(weight->tensor);
            ml.n_created++;
        }
    }
    return names;
}

} // namespace llama_spec
