// A call site that vendor/patches/ adds to the engine's templates. Implemented in abi/chat.cpp.
#pragma once

#include <string>

// A number as Python writes it: the fewest digits that give it back.
std::string llama_spec_number_text(double value);
