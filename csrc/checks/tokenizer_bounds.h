// Limits on tokenisation: stack, time, and the contents of a file's vocabulary.
#pragma once

#include <cstddef>
#include <functional>

struct gguf_context;
struct llama_vocab;

namespace llama_spec {

// Throws failure(LLAMA_SPEC_LOAD) for a vocabulary that would need too much stack, memory or time in a tokenizer.
void check_vocabulary(const gguf_context * file);

// Runs the engine's tokenizer with the stack that this text needs. Throws a failure if the text needs too much stack,
// or if the tokenizer takes too long.
void tokenize_bounded(const llama_vocab * vocab, const char * text, size_t n_bytes, const std::function<void()> & tokenize);

} // namespace llama_spec
