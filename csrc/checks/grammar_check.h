// A check of GBNF grammars before the engine builds its sampler from them.
#pragma once

#include "base/guard.h"
#include "checks/work_limit.h"

#include <atomic>
#include <cstddef>
#include <cstdint>

struct llama_vocab;

namespace llama_spec {

// Throws failure(LLAMA_SPEC_ARGUMENT) with the reason. The engine's parser would print its reason to stderr, and
// recurse over nested groups and chains of rules until the stack overflows.
void check_grammar(const llama_vocab * vocab, const char * text, const char * root);

// The same for the patterns that start a lazy grammar.
void check_triggers(const char * const * patterns, int32_t n);

// The stack size for a search for triggers in that many bytes. Throws if it is too large.
size_t trigger_stack(size_t n_bytes);

// The limit of a thread's own time for a grammar to choose one token, and for all tokens beyond GRAMMAR_SECONDS_EACH
// for each; other sequences wait meanwhile. Schemas of 30,000 values or 1,000 optional keys take 0.6 s.
// The fuzz targets set a lower limit.
#ifndef PYLLAMA_SPEC_SECONDS_PER_TOKEN
#define PYLLAMA_SPEC_SECONDS_PER_TOKEN 2.0
#endif

constexpr double GRAMMAR_SECONDS_EACH = 0.1;

// The memory is limited since a few bytes with a repetition can create many rules.
constexpr work_bounds GRAMMAR_BOUNDS = {
    PYLLAMA_SPEC_SECONDS_PER_TOKEN,
    "the grammar allows so many ways to go on that its tokens take more than two seconds; "
    "write it with fewer optional or repeated parts in a row: [a-z]{0,500}, not 500 times [a-z]?",
    512u << 20,
    "the grammar takes more than 512 MiB to be read, or to choose one token; "
    "write it with fewer repetitions within repetitions",
    LLAMA_SPEC_UNSUPPORTED,
};

} // namespace llama_spec
