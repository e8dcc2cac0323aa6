// What eagle3.cpp keeps of a draft beside the engine's own fields, and what the files of this folder ask of each
// other. The engine's models.h includes it (vendor/patches/0003), so it sees no type of the ABI.
#pragma once

#include "drafts/spec-ngrams.h"

#include "llama.h"

#include <cstdint>
#include <string>
#include <vector>

struct ggml_tensor;

// Of llama_model_eagle3: members that the engine's own class has no place for.
struct llama_spec_eagle3 {
    uint32_t n_embd_target = 0;     // width of one row of the target
    uint32_t n_features    = 0;     // n_embd_target for each target layer
    bool fc_norm     = false;
    bool norm_output = false;
    bool output_gate = false;
    std::vector<ggml_tensor *> fc_norms;
    ggml_tensor * fc_b = nullptr;
    llama_spec_ngram_places ngrams;
};

// How a batch's rows are read and what it gives: bits of llama_set_nextn_layer_offset(), which graphs that are
// reused are compared by.
enum llama_spec_eagle3_graph {
    LLAMA_SPEC_EAGLE3_HIDDEN_ROWS     = 1,  // rows are the head's own hidden rows, not features of the target
    LLAMA_SPEC_EAGLE3_CANDIDATES_ONLY = 2,  // the candidates are enough, no logits are wanted
};

// Behind the n_embd numbers of a row that the head hands on: the likeliest draft id and its probability, then the
// same of the one after it.
constexpr int LLAMA_SPEC_EAGLE3_CANDIDATES = 2;
constexpr int LLAMA_SPEC_EAGLE3_EXTRA = 2 * LLAMA_SPEC_EAGLE3_CANDIDATES;
