// A check of GBNF grammars before the engine builds its sampler from them.
#pragma once

struct llama_vocab;

namespace llama_spec {

// Throws failure(LLAMA_SPEC_ARGUMENT) with the reason. The engine's parser prints its reason to stderr, and
// it recurses over nested groups and chains of rules until the stack ends.
void check_grammar(const llama_vocab * vocab, const char * text, const char * root);

} // namespace llama_spec
