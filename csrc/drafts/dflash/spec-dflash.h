// dflash.cpp's own fields of a draft, beside the engine's, and the declarations that this folder's files share. The
// engine's models.h includes it (vendor/patches/0003), so it uses no type of the ABI.
#pragma once

#include <cstdint>

// Members of llama_model_dflash that the engine's own class lacks.
struct llama_spec_dflash {
    uint32_t n_features = 0;        // n_embd for each target layer
    int32_t  mask = -1;             // the token in slots to predict
    bool is_causal = false;         // within a block: a slot sees no later one
    bool is_sliding_causal = false; // the same, only for layers with a window
    bool guesses_behind = false;    // each slot predicts the token after it, the first slot too, instead of its own
};

// What a batch needs: a bit of llama_set_nextn_layer_offset(), which the engine compares before it reuses a graph.
enum llama_spec_dflash_graph {
    LLAMA_SPEC_DFLASH_CANDIDATES_ONLY = 1,  // only the candidates are needed, no logits
};

// Each slot's likeliest draft ids with their probabilities, then the confidence, if there is such a head. With a
// selector instead: its top k ids, and k x k scores, of each after each candidate of the previous slot.
constexpr int LLAMA_SPEC_DFLASH_CANDIDATES = 4;
// A head with a chain adds nodes to the graph for each slot, and the engine limits a graph's size.
constexpr int LLAMA_SPEC_DFLASH_MAX_SLOTS = 1024, LLAMA_SPEC_DFLASH_MAX_CHAIN = 32;
