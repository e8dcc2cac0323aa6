// A check that the memory of a context fits the machine, before it is allocated. The engine clears, hence touches, all
// of it: what does not fit gets the process killed.
#pragma once

#include <cstdint>

namespace llama_spec {

// From here on the buffers of one context's memory are counted together, on this thread.
void begin_counting_memory();

// The cells in which a cache keeps book of its positions are made, and touched, before any buffer: throws no_room where
// n_ctx of them with key_bytes each are too much already.
void check_cells(uint32_t n_ctx, uint64_t key_bytes);

// At most so many bytes of the host for each context's memory; 0 for what can be had without swapping, by what the
// machine has and what the process's control groups leave.
void limit_memory(uint64_t n_bytes);

} // namespace llama_spec
