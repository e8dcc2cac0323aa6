// Any bytes as a sequence's saved state, for a model with attention and one with a recurrent state; then decodes with
// it.

#include "fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t * data, size_t size) {
    static const fuzz::model models[] = {
        fuzz::load(fuzz::model_path("gpt2"), false), fuzz::load(fuzz::model_path("hybrid"), false),
    };
    static const fuzz::context contexts[] = { fuzz::open(models[0].get()), fuzz::open(models[1].get()) };
    if (size < 1 || !contexts[0] || !contexts[1]) {
        return 0;
    }
    llama_spec_context * c = contexts[data[0] & 1].get();
    llama_spec_memory_clear(c);
    fuzz::decode(c, 0, 4);
    if (llama_spec_state_set(c, 0, data[0] & 2, data + 1, size - 1) != LLAMA_SPEC_OK) {
        llama_spec_memory_clear(c);
    }
    int32_t first = 0, last = 0;
    llama_spec_seq_positions(c, 0, &first, &last);
    fuzz::decode(c, last + 1, 2);
    return 0;
}
