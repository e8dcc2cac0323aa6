// Where the arrays of an n-gram table lie in a draft's file: for the host alone, so no tensors are made of them. The
// engine's models.h includes it with what the kinds keep, so it sees no type of the ABI.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

struct llama_model_loader;

struct llama_spec_ngram_places {
    int64_t  n = 0;                 // contexts; 0 for a file without a table
    uint64_t keys_at = 0, ids_at = 0, p_at = 0;
};

namespace llama_spec {

// Notes where a table lies, and tells the loader that its tensors are taken care of. Gives their names. Returns why
// the file cannot be used, for parts of a table, or parts that do not fit each other; or nothing.
std::string ngrams_fault(llama_model_loader & ml, llama_spec_ngram_places * out, std::vector<std::string> * names);

} // namespace llama_spec
