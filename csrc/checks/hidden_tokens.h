// Control tokens that a grammar does not name. The engine matches their names like any text, and a text shows none of them:
// one within a string would count as some characters of it, and be seen by nobody.
#pragma once

#include <vector>

struct llama_vocab;

namespace llama_spec {

// For each id whether it is such a token; empty if there are none, or the grammar asks for tokens by their ids.
std::vector<bool> hidden_tokens(const llama_vocab * vocab, const char * grammar);

} // namespace llama_spec
