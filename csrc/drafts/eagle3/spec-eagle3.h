// eagle3.cpp's own fields of a draft, beside the engine's, and the declarations that this folder's files share. The
// engine's models.h includes it (vendor/patches/0003), so it uses no type of the ABI.
#pragma once

#include "llama.h"

#include <cstdint>
#include <string>
#include <vector>

struct ggml_tensor;

// Members of llama_model_eagle3 that the engine's own class lacks.
struct llama_spec_eagle3 {
    uint32_t n_embd_target = 0;     // width of one row of the target
    uint32_t n_features    = 0;     // n_embd_target for each target layer
    bool fc_norm     = false;
    bool norm_output = false;
    bool output_gate = false;
    std::vector<ggml_tensor *> fc_norms;
    ggml_tensor * fc_b = nullptr;
};

// How a batch's rows are read, and its results: bits of llama_set_nextn_layer_offset(), which the engine compares
// before it reuses a graph.
enum llama_spec_eagle3_graph {
    LLAMA_SPEC_EAGLE3_HIDDEN_ROWS     = 1,  // rows are the head's own hidden rows, not the target's features
    LLAMA_SPEC_EAGLE3_CANDIDATES_ONLY = 2,  // only the candidates are needed, no logits
};

// After the n_embd numbers of a row that the head passes on: the likeliest draft id and its probability, then the
// second likeliest and its probability.
constexpr int LLAMA_SPEC_EAGLE3_CANDIDATES = 2;
constexpr int LLAMA_SPEC_EAGLE3_EXTRA = 2 * LLAMA_SPEC_EAGLE3_CANDIDATES;
