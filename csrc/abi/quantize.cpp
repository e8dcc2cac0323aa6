#include "abi/llama-spec.h"
#include "base/guard.h"

#include "llama.h"

#include <cctype>
#include <cstring>
#include <string>

using namespace llama_spec;

namespace {

const struct { const char * name; llama_ftype type; } TYPES[] = {
    { "F32", LLAMA_FTYPE_ALL_F32 },          { "F16", LLAMA_FTYPE_MOSTLY_F16 },      { "BF16", LLAMA_FTYPE_MOSTLY_BF16 },
    { "Q4_0", LLAMA_FTYPE_MOSTLY_Q4_0 },     { "Q4_1", LLAMA_FTYPE_MOSTLY_Q4_1 },    { "Q5_0", LLAMA_FTYPE_MOSTLY_Q5_0 },
    { "Q5_1", LLAMA_FTYPE_MOSTLY_Q5_1 },     { "Q8_0", LLAMA_FTYPE_MOSTLY_Q8_0 },    { "Q2_K", LLAMA_FTYPE_MOSTLY_Q2_K },
    { "Q3_K_S", LLAMA_FTYPE_MOSTLY_Q3_K_S }, { "Q3_K_M", LLAMA_FTYPE_MOSTLY_Q3_K_M },
    { "Q3_K_L", LLAMA_FTYPE_MOSTLY_Q3_K_L }, { "Q4_K_S", LLAMA_FTYPE_MOSTLY_Q4_K_S },
    { "Q4_K_M", LLAMA_FTYPE_MOSTLY_Q4_K_M }, { "Q5_K_S", LLAMA_FTYPE_MOSTLY_Q5_K_S },
    { "Q5_K_M", LLAMA_FTYPE_MOSTLY_Q5_K_M }, { "Q6_K", LLAMA_FTYPE_MOSTLY_Q6_K },
    { "IQ4_NL", LLAMA_FTYPE_MOSTLY_IQ4_NL }, { "IQ4_XS", LLAMA_FTYPE_MOSTLY_IQ4_XS },
};

bool same_name(const char * a, const char * b) {
    for (; *a != 0 && *b != 0; ++a, ++b) {
        if (std::toupper((unsigned char) *a) != std::toupper((unsigned char) *b)) {
            return false;
        }
    }
    return *a == *b;
}

} // namespace

int32_t llama_spec_type_id(const char * name) {
    int32_t id = LLAMA_SPEC_ARGUMENT;
    const int rc = guarded([&] {
        require(name != nullptr, "a name is needed");
        for (int32_t i = 0; i < GGML_TYPE_COUNT; ++i) {
            const char * known = ggml_type_name((ggml_type) i);
            if (known != nullptr && same_name(known, name)) {
                id = i;
            }
        }
        if (id < 0) {
            fail(LLAMA_SPEC_ARGUMENT, std::string("the engine has no type ") + name);
        }
    });
    return rc == LLAMA_SPEC_OK ? id : rc;
}

const char * llama_spec_quantize_type(int32_t i) {
    const int32_t n = (int32_t) (sizeof(TYPES) / sizeof(TYPES[0]));
    return i >= 0 && i < n ? TYPES[i].name : nullptr;
}

int llama_spec_quantize(const char * path, const char * out_path, const char * type, int32_t n_threads, bool pure,
                        bool allow_requantize) {
    return guarded([&] {
        require(path != nullptr && out_path != nullptr && type != nullptr, "an input, an output and a type are needed");
        llama_model_quantize_params params = llama_model_quantize_default_params();
        bool found = false;
        for (const auto & entry : TYPES) {
            if (same_name(entry.name, type)) {
                params.ftype = entry.type;
                found = true;
            }
        }
        require(found, "there is no such quantisation type");
        params.nthread          = n_threads;
        params.pure             = pure;
        params.allow_requantize = allow_requantize;
        if (llama_model_quantize(path, out_path, &params) != 0) {
            fail(LLAMA_SPEC_LOAD, "the engine could not quantise the file");
        }
    });
}
