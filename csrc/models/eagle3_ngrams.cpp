// The n-gram table in the file of an EAGLE-3 draft. The engine computes nothing with it: docs/eagle3.md.

#include "spec-eagle3.h"

#include "models/models.h"

#include <iterator>
#include <stdexcept>

namespace {

[[noreturn]] void refuse(const std::string & why) {
    throw std::runtime_error("this EAGLE-3 draft cannot be used: " + why);
}

} // namespace

std::vector<std::string> llama_spec_eagle3_find_ngrams(llama_model_loader & ml, llama_spec_eagle3 & spec) {
    const struct { const char * name; ggml_type type; uint64_t * at; } parts[] = {
        { "ngram.keys", GGML_TYPE_I32, &spec.ngram_keys_at },
        { "ngram.ids",  GGML_TYPE_I32, &spec.ngram_ids_at },
        { "ngram.p",    GGML_TYPE_I8,  &spec.ngram_p_at },
    };
    std::vector<std::string> names;
    for (const auto & part : parts) {
        const auto * weight = ml.get_weight(part.name);
        if (weight == nullptr) {
            continue;
        }
        if (weight->idx != 0 || weight->tensor->type != part.type || ggml_n_dims(weight->tensor) != 1) {
            refuse(std::string("the tensor ") + part.name + " is no vector of " + ggml_type_name(part.type) + " in the first file");
        }
        if (!names.empty() && weight->tensor->ne[0] != spec.n_ngrams) {
            refuse(std::string("the tensor ") + part.name + " has " + std::to_string(weight->tensor->ne[0]) + " entries, and " +
                    names[0] + " has " + std::to_string(spec.n_ngrams));
        }
        spec.n_ngrams = weight->tensor->ne[0];
        *part.at = weight->offs;
        names.push_back(part.name);
        // As for a tensor that the engine skips.
        ml.size_data -= ggml_nbytes(weight->tensor);
        ml.n_created++;
    }
    if (!names.empty() && names.size() != std::size(parts)) {
        refuse("it has " + names[0] + ", and not all of ngram.keys, ngram.ids and ngram.p");
    }
    return names;
}

llama_spec_eagle3_ngrams llama_spec_eagle3_get_ngrams(const llama_model * model) {
    const auto & spec = static_cast<const llama_model_eagle3 *>(model)->spec;
    return { spec.n_ngrams, spec.ngram_keys_at, spec.ngram_ids_at, spec.ngram_p_at };
}
