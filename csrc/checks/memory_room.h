// Checks that a context's memory fits the machine before the engine allocates it. The engine clears, and so touches,
// all of it: without the check, the system would kill the process.
#pragma once

#include <cstdint>

namespace llama_spec {

// Starts a new count on this thread: all buffers of one context's memory are added up.
void begin_counting_memory();

// Checks n_ctx cells of key_bytes each before any buffer is allocated; throws no_room. The engine creates, and touches,
// a cache's bookkeeping cells first.
void check_cells(uint32_t n_ctx, uint64_t key_bytes);

// Limits the host memory of each context to n_bytes; 0 for what is free without swapping, by the machine's memory and
// the limits of the process's control groups.
void limit_memory(uint64_t n_bytes);

// Says whether that many bytes are free, by the same measure.
bool has_room(uint64_t n_bytes);

} // namespace llama_spec
