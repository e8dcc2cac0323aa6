// The n-gram table in the file of an EAGLE-3 draft. The engine computes nothing with it: docs/eagle3.md.

#include "drafts/eagle3/spec-eagle3.h"

#include "models/models.h"

#include <iterator>

namespace {

[[noreturn]] void refuse(const std::string & why) {
    llama_spec_eagle3_refuse(why);
}

} // namespace

std::vector<std::string> llama_spec_eagle3_find_ngrams(llama_model_loader & ml, llama_spec_eagle3 & spec) {
    const struct { const char * name; ggml_type type; uint64_t * at; } parts[] = {
        { "ngram.keys", GGML_TYPE_I32, &spec.ngrams.keys_at },
        { "ngram.ids",  GGML_TYPE_I32, &spec.ngrams.ids_at },
        { "ngram.p",    GGML_TYPE_I8,  &spec.ngrams.p_at },
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
        if (!names.empty() && weight->tensor->ne[0] != spec.ngrams.n) {
            refuse(std::string("the tensor ") + part.name + " has " + std::to_string(weight->tensor->ne[0]) + " entries, and " +
                    names[0] + " has " + std::to_string(spec.ngrams.n));
        }
        spec.ngrams.n = weight->tensor->ne[0];
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
