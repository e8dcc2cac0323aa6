// The characters of a vocabulary's tokens, decoded once, and what a grammar forbids of them.
#pragma once

#include "llama-grammar.h"
#include "llama.h"

#include <cstdint>
#include <vector>

namespace llama_spec {

// The engine decodes every token anew for every mask: that is most of what one takes.
class token_chars {
public:
    explicit token_chars(const llama_vocab * vocab);

    // Sets the logits of forbidden tokens to minus infinity, as the engine would. row: all tokens in their order. False,
    // with nothing done, where the grammar waits for its beginning or stands within a character.
    bool mask(const llama_grammar & grammar, std::vector<llama_token_data> & row) const;

private:
    enum class kind : uint8_t { TEXT, NONE, END };

    std::vector<kind>               kinds;
    std::vector<uint32_t>           chars;      // of all tokens, each with a 0 behind it
    std::vector<size_t>             begin;      // of each token in chars
    std::vector<llama_partial_utf8> partial;    // a character that a token leaves unfinished
};

} // namespace llama_spec
