#pragma once

struct llama_grammar;

namespace llama_spec {

// Replaces llama_grammar_clone_impl(), which compares each stack position with all elements of all rules: that takes
// minutes if a grammar can begin in tens of thousands of ways. This copy looks positions up in sorted rules. Free it
// with llama_grammar_free_impl().
llama_grammar * copy_grammar(const llama_grammar & from);

} // namespace llama_spec
