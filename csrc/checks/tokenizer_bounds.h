// Bounds on tokenisation: of the stack, of time, and of what a file's vocabulary may hold.
#pragma once

#include <cstddef>
#include <functional>

struct gguf_context;
struct llama_vocab;

namespace llama_spec {

// Throws failure(LLAMA_SPEC_LOAD) for a vocabulary that a tokenizer would need too much stack, memory or time for.
void check_vocabulary(const gguf_context * file);

// Runs the engine's tokenizer where it has the stack that it needs for this text. It throws a failure where the text
// would need more than a process should give, or the tokenizer takes too long.
void tokenize_bounded(const llama_vocab * vocab, const char * text, size_t n_bytes, const std::function<void()> & tokenize);

} // namespace llama_spec
