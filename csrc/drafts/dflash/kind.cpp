// DFlash as a kind of draft, including its forms with a Markov head (DSpark) and with a selector (DFlash2): checks
// whether a draft fits a target, and holds its part of a context.

#include "base/candidates.h"
#include "drafts/dflash/spec-dflash.h"
#include "drafts/draft_kind.h"
#include "drafts/draft_pair.h"

#include "models/models.h"

#include "llama-ext.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

namespace llama_spec {

namespace {

const llama_model_dflash & dflash_of(const llama_model * model) {
    return *static_cast<const llama_model_dflash *>(model);
}

std::string at(int32_t i) {
    return "token " + std::to_string(i) + " of the batch ";
}

class dflash_context : public draft_context {
public:
    dflash_context(const llama_model * draft, const llama_model * target)
        : model(dflash_of(draft)), n_draft(n_vocab_draft(draft)), ids_of(target_ids(draft)), whole(whole_output(draft, target)),
          k((int32_t) (model.dflash_selector_hidden != nullptr ? model.hparams.dflash_selector_top_k : 0)) {}

    void prepare(llama_context * ctx) override {
        n_ubatch = (int32_t) llama_n_ubatch(ctx);
        llama_set_causal_attn(ctx, model.spec.is_causal);
        llama_set_embeddings_nextn(ctx, true, /* masked */ true);
    }

    std::string refuse(const llama_spec_batch & batch) const override {
        if ((batch.ids == nullptr) == (batch.rows == nullptr)) {
            return "a DFlash draft takes rows of the target alone, or ids alone";
        }
        if (batch.n_tokens > n_ubatch) {
            // Otherwise a slot would not see all others; the engine asserts the same limit for rows.
            return "the batch has " + std::to_string(batch.n_tokens) + " tokens, more than the n_ubatch = " + std::to_string(n_ubatch) +
                " that a DFlash draft computes at once";
        }
        if (batch.ids == nullptr) {
            const auto * end = batch.output + batch.n_tokens;
            const auto * asked = std::find_if(batch.output, end, [](int8_t o) { return o != 0; });
            return asked == end ? "" : at((int32_t) (asked - batch.output)) + "asks for an output, which a row of the target has none of";
        }
        return block_fault(batch);
    }

    void set_mode(llama_context * ctx, const llama_spec_batch & batch) override {
        llama_set_nextn_layer_offset(ctx, batch.candidates_only ? LLAMA_SPEC_DFLASH_CANDIDATES_ONLY : 0);
        n_slots = batch.ids != nullptr ? length_of_first(batch) : 1;
    }

    int32_t n_candidates() const override { return std::max(k, (int32_t) LLAMA_SPEC_DFLASH_CANDIDATES); }
    int32_t n_row() const override { return model.dspark_conf_proj != nullptr ? 1 : 0; }
    const ggml_tensor * output() const override { return whole; }
    int32_t least_rows() const override { return std::max(k, 1); }  // a selector needs k ids to choose from

    int32_t read(llama_context * ctx, int32_t i, int32_t given, int32_t n_max, int32_t * ids, float * probabilities,
                 const float ** row, const draft_output * part) const override {
        const float * found = llama_get_embeddings_nextn_ith(ctx, i);
        if (found == nullptr) {
            *row = nullptr;
            return 0;
        }
        *row = found + 2 * LLAMA_SPEC_DFLASH_CANDIDATES;
        if (k == 0) {
            return read_candidates(found, LLAMA_SPEC_DFLASH_CANDIDATES, { n_draft, ids_of, part }, n_max, ids, probabilities);
        }
        *row = found;
        const int32_t before = i % n_slots > first_guess() ? place_of(llama_get_embeddings_nextn_ith(ctx, i - 1), given) : 0;
        return read_scores(found, found + k + (size_t) before * k, n_max, ids, probabilities);
    }

private:
    const llama_model_dflash & model;
    int32_t n_draft, n_ubatch = 0, n_slots = 1;
    std::vector<int32_t> ids_of;    // the target's id for each draft id; empty if they are the same
    const ggml_tensor * whole;
    int32_t k;                      // the selector's candidates; 0 without one

    int32_t first_guess() const { return model.spec.guesses_behind ? 0 : 1; }

    static int32_t length_of_first(const llama_spec_batch & batch) {
        int32_t n = 1;
        while (n < batch.n_tokens && batch.seq[n] == batch.seq[0]) {
            ++n;
        }
        return n;
    }

    // Slots of a block see each other, and the heads rely on that: a batch has one block for each sequence, all of
    // equal length.
    std::string block_fault(const llama_spec_batch & batch) const {
        if (batch.n_seq != nullptr) {
            return "a slot of a DFlash draft belongs to one sequence";
        }
        const int32_t n = length_of_first(batch);
        if (n > (int32_t) model.hparams.dflash_block_size) {
            return "a block has " + std::to_string(n) + " slots, more than the " + std::to_string(model.hparams.dflash_block_size) +
                " that the draft was trained with";
        }
        if (n <= first_guess()) {
            return "a block has one slot, that of the last token, and guesses nothing";
        }
        std::vector<int32_t> seqs;
        for (int32_t i = 0; i < batch.n_tokens; ++i) {
            if (i % n == 0) {
                if (std::find(seqs.begin(), seqs.end(), batch.seq[i]) != seqs.end()) {
                    return at(i) + "begins another block of sequence " + std::to_string(batch.seq[i]);
                }
                seqs.push_back(batch.seq[i]);
            } else if (batch.seq[i] != batch.seq[i - 1] || batch.pos[i] != batch.pos[i - 1] + 1) {
                return at(i) + "does not follow the one before: a DFlash draft takes blocks of equal lengths, one of each sequence, "
                    "and the first has " + std::to_string(n) + " slots";
            }
            if ((batch.output[i] != 0) != (i % n >= first_guess())) {
                return at(i) + (batch.output[i] != 0 ? "asks for an output, and it guesses nothing" : "is a guess, and asks for no output");
            }
        }
        return batch.n_tokens % n == 0 ? "" : "the last block of the batch is shorter than the others, of " + std::to_string(n) + " slots";
    }

    // The index of `given` among the previous slot's candidates; 0 if it is not among them.
    int32_t place_of(const float * before, int32_t given) const {
        int32_t place = 0;
        for (int32_t c = 0; before != nullptr && c < k; ++c) {
            if ((int32_t) before[c] == given) {
                place = c;
            }
        }
        return place;
    }

    int32_t read_scores(const float * found, const float * scores, int32_t n_max, int32_t * ids, float * probabilities) const {
        std::vector<int32_t> order((size_t) k);
        std::iota(order.begin(), order.end(), 0);
        for (int32_t c = 0; c < k; ++c) {
            if (!(found[c] >= 0.0f && found[c] < (float) model.vocab.n_tokens())) {
                throw std::runtime_error("the draft chose no token");
            }
            if (std::isnan(scores[c])) {
                throw std::runtime_error("the draft computed NaN: the target's rows or its own weights are NaN; convert the draft again");
            }
        }
        std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return scores[a] > scores[b]; });
        float sum = 0.0f;
        for (int32_t c : order) {
            sum += std::exp(scores[c] - scores[order[0]]);
        }
        const int32_t n = std::min(n_max, k);
        for (int32_t c = 0; c < n; ++c) {
            ids[c] = (int32_t) found[order[(size_t) c]];
            probabilities[c] = std::exp(scores[order[(size_t) c]] - scores[order[0]]) / sum;
        }
        return n;
    }
};

class dflash : public draft_kind {
public:
    const char * name() const override { return "DFlash"; }

    std::string mismatch(const llama_model * draft, const llama_model * target) const override {
        return pair_mismatch(draft, target, draft->hparams.n_embd);
    }

    std::unique_ptr<draft_context> open(const llama_model * draft, const llama_model * target) const override {
        return std::make_unique<dflash_context>(draft, target);
    }

    llama_spec_ngrams ngrams(const llama_model * draft) const override {
        const auto & found = dflash_of(draft).spec.ngrams;
        return { found.n, found.keys_at, found.ids_at, found.p_at };
    }

    llama_spec_block block(const llama_model * draft) const override {
        const auto & model = dflash_of(draft);
        const int32_t n_window = model.hparams.swa_type == LLAMA_SWA_TYPE_NONE ? 0 : (int32_t) model.hparams.n_swa;
        bool is_all = n_window > 0;
        for (uint32_t il = 0; il < model.hparams.n_layer(); ++il) {
            is_all = is_all && model.hparams.is_swa(il);
        }
        return { (int32_t) model.hparams.dflash_block_size, model.spec.mask, is_all ? n_window : 0, model.spec.guesses_behind,
            model.dspark_conf_proj != nullptr };
    }
};

} // namespace

const draft_kind & dflash_kind() {
    static const dflash kind;
    return kind;
}

} // namespace llama_spec
