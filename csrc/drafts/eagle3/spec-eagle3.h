// What eagle3.cpp keeps of a draft beside the engine's own fields, and what the files of this folder ask of each
// other. The engine's models.h includes it (vendor/patches/0003), so it sees no type of the ABI.
#pragma once

#include "llama.h"

#include <cstdint>
#include <string>
#include <vector>

struct ggml_tensor;
struct llama_model_loader;

// Where the arrays of an n-gram table lie in the file: for the host alone, so no tensors are made of them.
struct llama_spec_eagle3_ngrams {
    int64_t  n = 0;                 // contexts; 0 for a file without a table
    uint64_t keys_at = 0, ids_at = 0, p_at = 0;
};

// Of llama_model_eagle3: members that the engine's own class has no place for.
struct llama_spec_eagle3 {
    uint32_t n_embd_target = 0;     // width of one row of the target
    uint32_t n_features    = 0;     // n_embd_target for each target layer
    bool fc_norm     = false;
    bool norm_output = false;
    bool output_gate = false;
    std::vector<ggml_tensor *> fc_norms;
    ggml_tensor * fc_b = nullptr;
    llama_spec_eagle3_ngrams ngrams;
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

// Notes where an n-gram table lies, and tells the loader that its tensors are taken care of. Returns their names.
// Throws std::runtime_error for parts of a table, or parts that do not fit each other.
std::vector<std::string> llama_spec_eagle3_find_ngrams(llama_model_loader & ml, llama_spec_eagle3 & spec);

// Throws std::runtime_error: the draft's file is not what it should be.
[[noreturn]] void llama_spec_eagle3_refuse(const std::string & why);
