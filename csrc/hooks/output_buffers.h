// Output buffers that outlive the views into them.
#pragma once

#include <cstdint>

struct llama_context;

// Adds n (which may be negative) to the number of NumPy views of the context's output buffer; returns the sum. While it
// is positive, buffers that the engine replaces are kept; at zero they are freed. Thread-safe.
int64_t llama_spec_count_views(const llama_context * ctx, int32_t n);

// Called before the context is freed.
void llama_spec_forget_views(const llama_context * ctx);

// Called in a forked child: the parent's contexts are unusable there, and one of its threads may have held the lock.
void llama_spec_forget_outputs();
