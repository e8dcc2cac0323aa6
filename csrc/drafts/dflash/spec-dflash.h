// What dflash.cpp keeps of a draft beside the engine's own fields, and what the files of this folder ask of each
// other. The engine's models.h includes it (vendor/patches/0003), so it sees no type of the ABI.
#pragma once

#include "drafts/spec-ngrams.h"

#include <cstdint>

// Of llama_model_dflash: members that the engine's own class has no place for.
struct llama_spec_dflash {
    uint32_t n_features = 0;        // n_embd for each target layer
    int32_t  mask = -1;             // the token in a slot that is to be guessed
    bool is_causal = false;         // inside of a block: a slot sees none behind it
    bool is_sliding_causal = false; // the same, in layers with a window alone
    bool guesses_behind = false;    // a slot guesses the token behind it, the first slot too, and not its own
    llama_spec_ngram_places ngrams;
};

// What a batch wants: a bit of llama_set_nextn_layer_offset(), which graphs that are reused are compared by.
enum llama_spec_dflash_graph {
    LLAMA_SPEC_DFLASH_CANDIDATES_ONLY = 1,  // the candidates are enough, no logits are wanted
};

// Of each slot the likeliest draft ids with their probabilities, then the confidence where there is such a head. A
// draft with a selector has instead its top k ids, and k x k scores: of each behind each of the slot before.
constexpr int LLAMA_SPEC_DFLASH_CANDIDATES = 4;
// A head with a chain takes a part of the graph for each slot, and the engine bounds what a graph can hold.
constexpr int LLAMA_SPEC_DFLASH_MAX_SLOTS = 1024, LLAMA_SPEC_DFLASH_MAX_CHAIN = 32;
