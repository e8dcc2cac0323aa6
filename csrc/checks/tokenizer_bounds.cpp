// Most byte-pair vocabularies split a text into words with regular expressions, and the standard library's matcher
// recurses at least once for each character of a word. Some ten thousand letters, spaces or signs in a row overflow a
// thread's stack and end the process. So such a text is tokenized on a thread with a stack that is large enough.

#include "checks/tokenizer_bounds.h"

#include "base/guard.h"
#include "checks/work_limit.h"

#include "gguf.h"
#include "llama.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

namespace llama_spec {

namespace {

// Building the tries of RWKV and Unigram vocabularies recurses for each byte of a token. Published vocabularies have
// tokens of up to some hundred bytes.
constexpr size_t MAX_TOKEN_BYTES = 4096;
// PLaMo's table holds all suffixes of all tokens, so the squares of the lengths add up; PLaMo's own sum is some 10
// million.
constexpr uint64_t MAX_SUFFIX_BYTES = 1ull << 30;
// The maximum replacement of one character in normalization: in Unicode at most 33 bytes.
constexpr size_t MAX_REPLACEMENT_BYTES = 1024;

// Some 400 bytes were measured (GCC 12, -O3, 300,000 letters); builds with sanitizers need more.
constexpr size_t STACK_PER_BYTE = 2048;
constexpr size_t USUAL_STACK    = 1 << 20;
// A text with a longer stretch gets its own stack. Real words are shorter, and for those a thread of 512 KiB is enough.
constexpr size_t USUAL_STRETCH  = 128;
constexpr size_t MAX_STACK      = (size_t) 1 << 31;

// Tokenizers take about a microsecond per byte. The limit is in the thread's own time, so a busy machine changes
// nothing.
constexpr double SECONDS_AT_LEAST = 5.0, SECONDS_PER_BYTE = 50e-6;

bool is_space(unsigned char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

// A word is at most a stretch without white space, plus the white space before and after it. Non-ASCII white space
// counts as letters, which only makes stretches longer.
size_t longest_word(const char * text, size_t n_bytes) {
    size_t longest[2] = { 0, 0 }, run = 0;
    bool was_space = false;
    for (size_t i = 0; i < n_bytes; ++i) {
        const bool space = is_space((unsigned char) text[i]);
        run = i > 0 && space == was_space ? run + 1 : 1;
        was_space = space;
        longest[space] = std::max(longest[space], run);
    }
    return longest[0] + 2 * longest[1];
}

std::string text_of(const gguf_context * file, const char * key) {
    const int64_t id = gguf_find_key(file, key);
    return id >= 0 && gguf_get_kv_type(file, id) == GGUF_TYPE_STRING ? gguf_get_val_str(file, id) : "";
}

void check_charsmap(const gguf_context * file) {
    const char * key = "tokenizer.ggml.precompiled_charsmap";
    const int64_t id = gguf_find_key(file, key);
    if (id < 0 || gguf_get_kv_type(file, id) != GGUF_TYPE_ARRAY ||
            (gguf_get_arr_type(file, id) != GGUF_TYPE_UINT8 && gguf_get_arr_type(file, id) != GGUF_TYPE_INT8)) {
        return;
    }
    const size_t n = gguf_get_arr_n(file, id);
    const char * data = static_cast<const char *>(gguf_get_arr_data(file, id));
    uint32_t n_table = 0;
    if (n > sizeof(n_table)) {
        std::memcpy(&n_table, data, sizeof(n_table));
    }
    size_t run = 0;
    for (size_t i = sizeof(n_table) + (size_t) n_table; i < n; ++i) {
        run = data[i] == 0 ? 0 : run + 1;
        if (run > MAX_REPLACEMENT_BYTES) {
            fail(LLAMA_SPEC_LOAD, std::string("the file is damaged: ") + key + " replaces a character by more than " +
                    std::to_string(MAX_REPLACEMENT_BYTES) + " bytes");
        }
    }
}

} // namespace

void check_vocabulary(const gguf_context * file) {
    const int64_t id = gguf_find_key(file, "tokenizer.ggml.tokens");
    const bool is_list = id >= 0 && gguf_get_kv_type(file, id) == GGUF_TYPE_ARRAY && gguf_get_arr_type(file, id) == GGUF_TYPE_STRING;
    uint64_t squares = 0;
    for (size_t i = 0; is_list && i < gguf_get_arr_n(file, id); ++i) {
        const size_t n = std::strlen(gguf_get_arr_str(file, id, i));
        if (n > MAX_TOKEN_BYTES) {
            fail(LLAMA_SPEC_LOAD, "the file is damaged: token " + std::to_string(i) + " has " + std::to_string(n) +
                    " bytes; a token has at most " + std::to_string(MAX_TOKEN_BYTES));
        }
        squares += (uint64_t) n * n;
    }
    const std::string kind = text_of(file, "tokenizer.ggml.model");
    if (kind.rfind("plamo", 0) == 0 && squares > MAX_SUFFIX_BYTES) {
        fail(LLAMA_SPEC_LOAD, "the file is damaged: the tokens of its vocabulary are too long for a tokenizer of kind " + kind);
    }
    check_charsmap(file);
}

void tokenize_bounded(const llama_vocab * vocab, const char * text, size_t n_bytes, const std::function<void()> & tokenize) {
    const auto run = [&] {
        const work_limit limit(SECONDS_AT_LEAST + SECONDS_PER_BYTE * (double) n_bytes, LLAMA_SPEC_ENGINE,
                "the tokenizer takes far longer than any text of this length should; the vocabulary may be damaged");
        tokenize();
    };
    const size_t word = llama_vocab_type(vocab) == LLAMA_VOCAB_TYPE_BPE ? longest_word(text, n_bytes) : 0;
    if (word <= USUAL_STRETCH) {
        run();
        return;
    }
    const size_t n_stack = USUAL_STACK + word * STACK_PER_BYTE;
    if (n_stack > MAX_STACK) {
        constexpr size_t most = (MAX_STACK - USUAL_STACK) / STACK_PER_BYTE;
        fail(LLAMA_SPEC_ARGUMENT, "the text has too long a stretch without white space, or of it alone: at most " +
                std::to_string(most) + " bytes in a row can be tokenized, " + std::to_string(most / 2) +
                " of white space. Break it up");
    }
    with_deep_stack(n_stack, run);
}

} // namespace llama_spec
