// A check of a model file before the engine loads it.
#pragma once

#include <string>

namespace llama_spec {

// Throws failure(LLAMA_SPEC_LOAD) for metadata that the engine would divide by without a check.
void check_gguf(const char * path);

// ", and these keys are 0: ...", listing the architecture's zero values; "" if there are none.
std::string zeros_of(const char * path);

} // namespace llama_spec
