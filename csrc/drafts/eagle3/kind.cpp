// EAGLE-3 as a kind of draft: whether a head goes with a target, and a head's part of a context.

#include "drafts/draft_kind.h"
#include "drafts/eagle3/spec-eagle3.h"

#include "models/models.h"

#include "llama-ext.h"

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

namespace llama_spec {

namespace {

constexpr int64_t MAX_PADDING = 128;    // ids by which vocabularies of one family are padded differently

struct head_sizes {
    int32_t n_embd_target = 0;
    int32_t n_vocab_draft = 0;
    bool    has_own_embedding = false, has_own_output = false;
};

head_sizes sizes_of(const llama_model * model) {
    head_sizes out;
    out.n_embd_target = (int32_t) static_cast<const llama_model_eagle3 *>(model)->spec.n_embd_target;
    out.n_vocab_draft = (int32_t) (model->d2t != nullptr ? model->d2t->ne[0] : model->vocab.n_tokens());
    out.has_own_embedding = model->tok_embd != nullptr;
    out.has_own_output    = model->output   != nullptr;
    return out;
}

std::string why_not(const llama_model * draft, const llama_model * target) {
    const auto sizes = sizes_of(draft);
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

// The target's id of each draft id; empty where they are the same. Throws std::runtime_error, naming d2t, for an
// id outside the vocabulary or one that comes twice.
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

class eagle3_context : public draft_context {
public:
    explicit eagle3_context(const llama_model * draft)
        : n_embd((int32_t) draft->hparams.n_embd), n_vocab_draft(sizes_of(draft).n_vocab_draft), ids_of(target_ids(draft)) {}

    void prepare(llama_context * ctx) override {
        llama_set_embeddings_nextn(ctx, true, /* masked */ true);
    }

    std::string refuse(const llama_spec_batch & batch) const override {
        if (batch.ids == nullptr || batch.rows == nullptr) {
            return "an EAGLE-3 draft takes an id and a row of every token";
        }
        if (batch.mode != LLAMA_SPEC_DRAFT_FEATURES && batch.mode != LLAMA_SPEC_DRAFT_HIDDEN) {
            return "an EAGLE-3 draft has no mode " + std::to_string(batch.mode);
        }
        return "";
    }

    void set_mode(llama_context * ctx, const llama_spec_batch & batch) override {
        llama_set_nextn_layer_offset(ctx, (batch.mode == LLAMA_SPEC_DRAFT_HIDDEN ? LLAMA_SPEC_EAGLE3_HIDDEN_ROWS : 0) |
                (batch.candidates_only ? LLAMA_SPEC_EAGLE3_CANDIDATES_ONLY : 0));
    }

    int32_t n_candidates() const override { return LLAMA_SPEC_EAGLE3_CANDIDATES; }
    int32_t n_row() const override { return n_embd; }

    int32_t read(llama_context * ctx, int32_t i, int32_t n_max, int32_t * ids, float * probabilities,
                 const float ** row) const override {
        *row = llama_get_embeddings_nextn_ith(ctx, i);
        if (*row == nullptr) {
            return 0;
        }
        const float * found = *row + n_embd;
        int32_t n = 0;
        for (; n < std::min(n_max, n_candidates()); ++n, found += 2) {
            if (!(found[0] >= 0.0f && found[0] < (float) n_vocab_draft)) {
                throw std::runtime_error("the draft chose no token");
            }
            if (n > 0 && found[1] < 0.0f) {
                break;  // struck out: its vocabulary has no other
            }
            ids[n] = ids_of.empty() ? (int32_t) found[0] : ids_of[(size_t) found[0]];
            probabilities[n] = found[1];
        }
        return n;
    }

private:
    int32_t n_embd, n_vocab_draft;
    std::vector<int32_t> ids_of;    // the target's id of each of the draft's; empty if they are the same
};

class eagle3 : public draft_kind {
public:
    const char * name() const override { return "EAGLE-3"; }

    std::string mismatch(const llama_model * draft, const llama_model * target) const override {
        return why_not(draft, target);
    }

    std::unique_ptr<draft_context> open(const llama_model * draft, const llama_model *) const override {
        return std::make_unique<eagle3_context>(draft);
    }

    llama_spec_ngrams ngrams(const llama_model * draft) const override {
        const auto & found = static_cast<const llama_model_eagle3 *>(draft)->spec.ngrams;
        return { found.n, found.keys_at, found.ids_at, found.p_at };
    }
};

} // namespace

const draft_kind & eagle3_kind() {
    static const eagle3 kind;
    return kind;
}

} // namespace llama_spec
