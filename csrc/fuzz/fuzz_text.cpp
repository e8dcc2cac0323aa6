// Any text, tokenized by each kind of vocabulary and converted back. The first byte chooses the vocabulary.

#include "fuzz/fuzz.h"

#include <array>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t * data, size_t size) {
    static const char * const names[] = { "gpt2", "llama", "bert", "t5", "rwkv", "tekken", "deepseek-v3", "plamo2" };
    static std::array<fuzz::model, 8> models;
    if (size < 2) {
        return 0;
    }
    const size_t which = data[0] % models.size();
    if (!models[which]) {
        models[which] = fuzz::load(fuzz::model_path(names[which]), true);
        if (!models[which]) {
            std::fprintf(stderr, "%s: %s\n", names[which], llama_spec_last_error());
            std::exit(2);
        }
    }
    llama_spec_model * m = models[which].get();
    std::vector<int32_t> ids(size * 4 + 16);
    const char * text = reinterpret_cast<const char *>(data) + 2;
    const int32_t n = llama_spec_tokenize(m, text, (int32_t) size - 2, ids.data(), (int32_t) ids.size(), data[1] & 1, data[1] & 2);
    char piece[64];
    for (int32_t i = 0; i < n; ++i) {
        llama_spec_token_to_piece(m, ids[(size_t) i], piece, sizeof(piece), data[1] & 2);
    }
    return 0;
}
