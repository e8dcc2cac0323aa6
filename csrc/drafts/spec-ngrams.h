// The file offsets of an n-gram table's arrays: only the host uses them, so they become no tensors. The engine's
// models.h includes it with the kinds' own fields, so it uses no type of the ABI.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

struct llama_model_loader;

struct llama_spec_ngram_places {
    int64_t  n = 0;                 // contexts; 0 without a table
    uint64_t keys_at = 0, ids_at = 0, p_at = 0;
};

namespace llama_spec {

// Records where a table lies, marks its tensors as handled for the loader, and collects their names. Returns why the
// file cannot be used, if parts are missing or do not fit each other; otherwise an empty text.
std::string ngrams_fault(llama_model_loader & ml, llama_spec_ngram_places * out, std::vector<std::string> * names);

} // namespace llama_spec
