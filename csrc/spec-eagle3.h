// What csrc/models/eagle3.cpp keeps of a draft beside the engine's own fields, and what the rest of csrc/ asks
// of it. Private to the engine's library and to _engine: it does not see cffi.
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

// Of llama_model_eagle3: members that the engine's own class has no place for (vendor/patches/0003).
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
enum llama_spec_draft_mode {
    LLAMA_SPEC_DRAFT_OWN_ROWS  = 1,     // rows are the head's own, not features of the target
    LLAMA_SPEC_DRAFT_NO_LOGITS = 2,     // the chosen token and its probability are enough
};

// Behind the n_embd numbers of a row that the head hands on: the likeliest draft id and its probability, then the
// same of the one after it.
constexpr int LLAMA_SPEC_DRAFT_RANKS = 2;
constexpr int LLAMA_SPEC_DRAFT_EXTRA = 2 * LLAMA_SPEC_DRAFT_RANKS;

bool llama_spec_is_eagle3(const llama_model * model);

struct llama_spec_eagle3_sizes {
    int32_t n_embd_target = 0;
    int32_t n_vocab_draft = 0;
    bool    has_own_embedding = false, has_own_output = false;
};
llama_spec_eagle3_sizes llama_spec_eagle3_get_sizes(const llama_model * model);

// Notes where an n-gram table lies, and tells the loader that its tensors are taken care of. Returns their names.
// Throws std::runtime_error for parts of a table, or parts that do not fit each other.
std::vector<std::string> llama_spec_eagle3_find_ngrams(llama_model_loader & ml, llama_spec_eagle3 & spec);

llama_spec_eagle3_ngrams llama_spec_eagle3_get_ngrams(const llama_model * model);

namespace llama_spec_draft {
// Throws std::runtime_error: the draft's file is not what it should be.
[[noreturn]] void refuse(const std::string & why);
} // namespace llama_spec_draft

// Why the head cannot draft for the target: sizes first, then the vocabularies' first difference. Empty if it can.
std::string llama_spec_eagle3_mismatch(const llama_model * draft, const llama_model * target);

// The target's id of each draft id; empty where they are the same. Throws std::runtime_error, naming d2t, for an
// id outside the vocabulary or one that comes twice.
std::vector<int32_t> llama_spec_eagle3_target_ids(const llama_model * draft);
