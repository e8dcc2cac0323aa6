// A check of a model file before the engine loads it.
#pragma once

namespace llama_spec {

// Throws failure(LLAMA_SPEC_LOAD) for metadata that the engine would divide by without a check.
void check_gguf(const char * path);

// Throws failure(LLAMA_SPEC_LOAD) for a file that ends before its tensors: the engine reads those of a projector without
// a look at how many bytes came.
void check_tensors_end(const char * path);

} // namespace llama_spec
