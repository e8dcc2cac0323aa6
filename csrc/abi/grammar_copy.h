#pragma once

struct llama_grammar;

namespace llama_spec {

// As llama_grammar_clone_impl(), which compares each place of a stack with all elements of all rules: minutes where a grammar
// has tens of thousands of ways to begin. Here a place is found among the sorted rules. Freed by llama_grammar_free_impl().
llama_grammar * copy_grammar(const llama_grammar & from);

} // namespace llama_spec
