// EAGLE-3 as a kind of draft: checks whether a head fits a target, and holds a head's part of a context.

#include "base/candidates.h"
#include "drafts/draft_kind.h"
#include "drafts/draft_pair.h"
#include "drafts/eagle3/spec-eagle3.h"

#include "models/models.h"

#include "llama-ext.h"

#include <string>
#include <vector>

namespace llama_spec {

namespace {

class eagle3_context : public draft_context {
public:
    eagle3_context(const llama_model * draft, const llama_model * target)
        : n_embd((int32_t) draft->hparams.n_embd), n_draft(n_vocab_draft(draft)), ids_of(target_ids(draft)),
          whole(whole_output(draft, target)) {}

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
    const ggml_tensor * output() const override { return whole; }

    int32_t read(llama_context * ctx, int32_t i, int32_t /* given */, int32_t n_max, int32_t * ids, float * probabilities,
                 const float ** row, const draft_output * part) const override {
        *row = llama_get_embeddings_nextn_ith(ctx, i);
        if (*row == nullptr) {
            return 0;
        }
        return read_candidates(*row + n_embd, n_candidates(), { n_draft, ids_of, part }, n_max, ids, probabilities);
    }

private:
    int32_t n_embd, n_draft;
    std::vector<int32_t> ids_of;    // the target's id for each draft id; empty if they are the same
    const ggml_tensor * whole;
};

class eagle3 : public draft_kind {
public:
    const char * name() const override { return "EAGLE-3"; }

    std::string mismatch(const llama_model * draft, const llama_model * target) const override {
        return pair_mismatch(draft, target, static_cast<const llama_model_eagle3 *>(draft)->spec.n_embd_target);
    }

    std::unique_ptr<draft_context> open(const llama_model * draft, const llama_model * target) const override {
        return std::make_unique<eagle3_context>(draft, target);
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
