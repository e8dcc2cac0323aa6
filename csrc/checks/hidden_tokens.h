// Control tokens that a grammar does not name. The engine matches their names like text, but a text shows none of them:
// within a string, one would count as characters that no reader sees.
#pragma once

#include <vector>

struct llama_vocab;

namespace llama_spec {

// Says for each id whether it is such a token; empty if there are none, or if the grammar refers to tokens by id.
std::vector<bool> hidden_tokens(const llama_vocab * vocab, const char * grammar);

} // namespace llama_spec
