// The kind of memory that a graph reads. An architecture chooses its memory by the file's keys, and its graph without
// them: afmoe without attention.sliding_window has one cache, and its graph asks for two.
#pragma once

#include "llama-memory.h"

#include <stdexcept>

// The memory as the kind that the graph needs; throws if it is another.
template <typename T> const T * llama_spec_memory_as(const llama_memory_context_i * memory) {
    const auto * found = dynamic_cast<const T *>(memory);
    if (found == nullptr) {
        throw std::runtime_error("the model's file is damaged: its keys choose a memory that its layers cannot use");
    }
    return found;
}
