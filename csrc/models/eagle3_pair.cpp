// Whether an EAGLE-3 draft goes with a target, said before a context of the two is made.

#include "spec-eagle3.h"

#include "models/models.h"

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace {

constexpr int64_t MAX_PADDING = 128;    // ids by which vocabularies of one family are padded differently

} // namespace

bool llama_spec_is_eagle3(const llama_model * model) {
    return model->arch == LLM_ARCH_EAGLE3;
}

llama_spec_eagle3_sizes llama_spec_eagle3_get_sizes(const llama_model * model) {
    llama_spec_eagle3_sizes out;
    out.n_embd_target = (int32_t) static_cast<const llama_model_eagle3 *>(model)->spec.n_embd_target;
    out.n_vocab_draft = (int32_t) (model->d2t != nullptr ? model->d2t->ne[0] : model->vocab.n_tokens());
    out.has_own_embedding = model->tok_embd != nullptr;
    out.has_own_output    = model->output   != nullptr;
    return out;
}

std::string llama_spec_eagle3_mismatch(const llama_model * draft, const llama_model * target) {
    const auto sizes = llama_spec_eagle3_get_sizes(draft);
    const auto differ = [](const std::string & what, int64_t wanted, int64_t found) {
        return "the draft was made for a target with " + what + " " + std::to_string(wanted) + ", this one has " + std::to_string(found);
    };
    const int64_t n_embd_target = target->hparams.n_embd;
    if (sizes.n_embd_target != n_embd_target) {
        return differ("rows of width", sizes.n_embd_target, n_embd_target);
    }
    for (int32_t layer : draft->target_layer_ids) {
        if (layer > (int32_t) target->hparams.n_layer()) {
            return "the draft reads the input of layer " + std::to_string(layer) + ", the target has the layer inputs 0 .. " +
                std::to_string(target->hparams.n_layer());
        }
    }
    const int64_t n_embd = draft->hparams.n_embd;
    if ((!sizes.has_own_embedding || !sizes.has_own_output) && n_embd != n_embd_target) {
        return std::string("the draft has no ") + (sizes.has_own_embedding ? "output.weight" : "token_embd.weight") +
            " of its own and is " + std::to_string(n_embd) + " wide, so that it cannot use the target's, which is " +
            std::to_string(n_embd_target) + " wide";
    }
    const int64_t n_draft = draft->vocab.n_tokens(), n_target = target->vocab.n_tokens();
    const bool shares = !sizes.has_own_embedding || !sizes.has_own_output;
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

std::vector<int32_t> llama_spec_eagle3_target_ids(const llama_model * draft) {
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
