// The n-gram table in a draft's file. The engine does not compute with it: docs/eagle3.md.

#include "drafts/spec-ngrams.h"

#include "llama-model-loader.h"

#include <iterator>

namespace llama_spec {

std::string ngrams_fault(llama_model_loader & ml, llama_spec_ngram_places * out, std::vector<std::string> * names) {
    const struct { const char * name; ggml_type type; uint64_t * at; } parts[] = {
        { "ngram.keys", GGML_TYPE_I32, &out->keys_at },
        { "ngram.ids",  GGML_TYPE_I32, &out->ids_at },
        { "ngram.p",    GGML_TYPE_I8,  &out->p_at },
    };
    for (const auto & part : parts) {
        const auto * weight = ml.get_weight(part.name);
        if (weight == nullptr) {
            continue;
        }
        if (weight->idx != 0 || weight->tensor->type != part.type || ggml_n_dims(weight->tensor) != 1) {
            return (std::string("the tensor ") + part.name + " is no vector of " + ggml_type_name(part.type) + " in the first file");
        }
        if (!names->empty() && weight->tensor->ne[0] != out->n) {
            return (std::string("the tensor ") + part.name + " has " + std::to_string(weight->tensor->ne[0]) + " entries, and " +
                    names->front() + " has " + std::to_string(out->n));
        }
        out->n = weight->tensor->ne[0];
        *part.at = weight->offs;
        names->push_back(part.name);
        // Counts the tensor as the engine does for one that it skips.
        ml.size_data -= ggml_nbytes(weight->tensor);
        ml.n_created++;
    }
    if (!names->empty() && names->size() != std::size(parts)) {
        return ("it has " + names->front() + ", and not all of ngram.keys, ngram.ids and ngram.p");
    }
    return "";
}

} // namespace llama_spec
