// Code that the targets share: each passes libFuzzer's input to the C ABI, as Python does.
#pragma once

#include "abi/llama-spec.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <unistd.h>

namespace fuzz {

struct free_model   { void operator()(llama_spec_model * m)   const { llama_spec_model_free(m); } };
struct free_context { void operator()(llama_spec_context * c) const { llama_spec_context_free(c); } };
struct free_sampler { void operator()(llama_spec_sampler * s) const { llama_spec_sampler_free(s); } };

using model   = std::unique_ptr<llama_spec_model, free_model>;
using context = std::unique_ptr<llama_spec_context, free_context>;
using sampler = std::unique_ptr<llama_spec_sampler, free_sampler>;

inline model load(const std::string & path, bool vocab_only) {
    llama_spec_set_log_level(5);
    llama_spec_model_params params = {};
    params.vocab_only = vocab_only;
    llama_spec_model * out = nullptr;
    llama_spec_model_load(path.c_str(), &params, &out);
    return model(out);
}

inline context open(llama_spec_model * m) {
    llama_spec_context_params params = {};
    params.n_seq_max = 1;
    params.type_k = params.type_v = 1;  // F16
    params.flash_attn = params.rope_scaling_type = params.pooling_type = params.attention_type = -1;
    params.yarn_ext_factor = params.yarn_attn_factor = params.yarn_beta_fast = params.yarn_beta_slow = -1.0f;
    params.swa_full = true;
    params.n_ctx = 64;
    params.n_batch = params.n_ubatch = 32;
    params.n_threads = params.n_threads_batch = 1;
    llama_spec_context * out = nullptr;
    llama_spec_context_new(m, &params, nullptr, &out);
    return context(out);
}

// Tokens 0, 1, 2 ... from a given position on.
inline int decode(llama_spec_context * c, int32_t from, int32_t n) {
    std::vector<int32_t> ids, pos, seq;
    for (int32_t i = 0; i < n; ++i) {
        ids.push_back(65 + i);
        pos.push_back(from + i);
        seq.push_back(0);
    }
    const std::vector<int8_t> output((size_t) n, 1);
    llama_spec_batch batch = {};
    batch.n_tokens = n;
    batch.ids = ids.data();
    batch.pos = pos.data();
    batch.seq = seq.data();
    batch.output = output.data();
    return llama_spec_decode(c, &batch, false);
}

// The models that `python -m tests.fuzz.corpus` wrote, sorted by name; the target exits without them.
inline std::string model_path(const char * name) {
    const char * folder = std::getenv("PYLLAMA_SPEC_FUZZ_MODELS");
    if (folder == nullptr) {
        std::fprintf(stderr, "set PYLLAMA_SPEC_FUZZ_MODELS to the folder that tests.fuzz.corpus wrote\n");
        std::exit(2);
    }
    return std::string(folder) + "/" + name + ".gguf";
}

} // namespace fuzz
