// The graph of a DFlash draft. A batch has either rows with features of the target, whose keys and values are stored,
// or tokens, which form blocks of slots to predict.
#pragma once

#include "base/draft_output.h"
#include "models/models.h"

#include <utility>
#include <vector>

namespace llama_spec {

struct dflash_graph : public llm_graph_context {
    dflash_graph(const llama_model_dflash & model, const llm_graph_params & params);

  private:
    const llama_model_dflash & model;
    const llama_model * other;      // the target, if a tensor is shared
    llm_graph_input_attn_kv      * attn      = nullptr;     // one of the two is set
    llm_graph_input_attn_kv_iswa * attn_iswa = nullptr;
    ggml_tensor * positions = nullptr, * tokens = nullptr, * out_ids = nullptr;
    // The batch's sequences; each has one block, and all blocks have the same number of slots. The engine also builds
    // graphs to measure memory, which match no batch of ours; those count as one block.
    int64_t n_blocks = 1;
    const draft_output * part = draft_output_in_use();  // a part of the vocabulary, or NULL for the whole

    ggml_tensor * project(ggml_tensor * w, ggml_tensor * bias, ggml_tensor * cur);
    ggml_tensor * embed();
    ggml_tensor * rotate(ggml_tensor * cur);
    std::pair<ggml_tensor *, ggml_tensor *> keys_and_values(ggml_tensor * cur, int il);
    void inject();
    void store(ggml_tensor * k, ggml_tensor * v, int il);
    ggml_tensor * attention(ggml_tensor * cur, int il);
    ggml_tensor * block(ggml_tensor * cur, int il);

    // The heads: from the last layer's rows to the draft's result.
    ggml_tensor * convolve(ggml_tensor * cur, ggml_tensor * dynamic, ggml_tensor * base, int side);
    void finish(ggml_tensor * cur);
    void chain(ggml_tensor * hidden, ggml_tensor * logits);
    void select(ggml_tensor * hidden, ggml_tensor * logits);
    void give(ggml_tensor * result, ggml_tensor * logits, bool is_mapped = false);
    // Converts logits of the draft's ids to the target's, and looks up the target's tables for the slots of a part.
    ggml_tensor * in_target(ggml_tensor * logits);
    ggml_tensor * ids_at(ggml_tensor * places);
    ggml_tensor * of_slots(ggml_tensor * of_all);
    ggml_tensor * join(const std::vector<ggml_tensor *> & parts, size_t first, size_t end);
    ggml_tensor * block_major(ggml_tensor * cur);
    ggml_tensor * first_tokens();
    bool wants_logits() const { return (cparams.nextn_layer_offset & LLAMA_SPEC_DFLASH_CANDIDATES_ONLY) == 0; }
};

} // namespace llama_spec
