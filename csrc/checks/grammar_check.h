// A check of GBNF grammars before the engine builds its sampler from them.
#pragma once

#include "base/guard.h"
#include "checks/work_limit.h"

#include <atomic>
#include <cstddef>
#include <cstdint>

struct llama_vocab;

namespace llama_spec {

// Throws failure(LLAMA_SPEC_ARGUMENT) with the reason. The engine's parser prints its reason to stderr, and
// it recurses over nested groups and chains of rules until the stack ends.
void check_grammar(const llama_vocab * vocab, const char * text, const char * root);

// The same for the patterns that a grammar waits for.
void check_triggers(const char * const * patterns, int32_t n);

// The stack that looking for triggers in so many bytes needs. Throws where that is too much.
size_t trigger_stack(size_t n_bytes);

// What a grammar may take to choose one token, of the thread's own time, and all its tokens together beyond what each may
// take. JSON takes milliseconds. The fuzz targets say less.
#ifndef PYLLAMA_SPEC_SECONDS_PER_TOKEN
#define PYLLAMA_SPEC_SECONDS_PER_TOKEN 10.0
#endif

constexpr double GRAMMAR_SECONDS_EACH = 0.1;

// Of memory, a repetition can make rules of a few bytes.
constexpr work_bounds GRAMMAR_BOUNDS = {
    PYLLAMA_SPEC_SECONDS_PER_TOKEN,
    "the grammar allows so many ways to go on that its tokens take more than ten seconds; "
    "write it with fewer optional or repeated parts in a row: [a-z]{0,500}, not 500 times [a-z]?",
    512u << 20,
    "the grammar takes more than 512 MiB to be read, or to choose one token; "
    "write it with fewer repetitions within repetitions",
    LLAMA_SPEC_UNSUPPORTED,
};

} // namespace llama_spec
