// Any text as a grammar, then some tokens that it allows.

#include "fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t * data, size_t size) {
    static const fuzz::model m = fuzz::load(fuzz::model_path("gpt2"), true);
    const std::string text(reinterpret_cast<const char *>(data), size);
    llama_spec_sampler_params params = {};
    params.top_p = params.typical_p = params.repeat_penalty = 1.0f;
    params.grammar = text.c_str();
    llama_spec_sampler * raw = nullptr;
    llama_spec_sampler_new(m.get(), &params, &raw);
    const fuzz::sampler s(raw);
    if (!s) {
        return 0;
    }
    llama_spec_model_info info;
    llama_spec_model_get_info(m.get(), &info);
    std::vector<float> logits((size_t) info.n_vocab, 0.0f);
    for (int32_t i = 0; i < 8; ++i) {
        logits[(size_t) (i * 37) % logits.size()] = 1.0f + (float) i;
        int32_t id = 0;
        if (llama_spec_sample_row(s.get(), logits.data(), info.n_vocab, &id) != LLAMA_SPEC_OK ||
                llama_spec_sampler_accept(s.get(), id, true) != LLAMA_SPEC_OK) {
            break;
        }
    }
    return 0;
}
