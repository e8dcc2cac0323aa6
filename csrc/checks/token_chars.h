// The characters of a vocabulary's tokens, decoded once, and the tokens that a grammar forbids.
#pragma once

#include "llama-grammar.h"
#include "llama.h"

#include <cstdint>
#include <vector>

namespace llama_spec {

// The engine decodes every token again for each mask, which takes most of a mask's time.
class token_chars {
public:
    explicit token_chars(const llama_vocab * vocab);

    // Sets the logits of forbidden tokens to minus infinity, as the engine would. row: all tokens in their order.
    // Returns false, and changes nothing, if the grammar waits for its trigger or is within a character.
    bool mask(const llama_grammar & grammar, std::vector<llama_token_data> & row) const;

private:
    enum class kind : uint8_t { TEXT, NONE, END };

    std::vector<kind>               kinds;
    std::vector<uint32_t>           chars;      // of all tokens, each followed by a 0
    std::vector<size_t>             begin;      // the index of each token in chars
    std::vector<llama_partial_utf8> partial;    // the unfinished character at the end of each token
};

} // namespace llama_spec
