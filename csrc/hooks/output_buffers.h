// Output buffers that outlive the views into them.
#pragma once

#include <cstdint>

struct llama_context;

// So many NumPy views more, or fewer, point into the context's output buffer; returns how many there are. While there
// are any, a buffer that the engine outgrows is kept; at zero the kept ones are freed. Views come and go in any thread.
int64_t llama_spec_count_views(const llama_context * ctx, int32_t n);

// The context is about to be freed.
void llama_spec_forget_views(const llama_context * ctx);

// In a forked child: the parent's contexts are of no use there, and one of its threads may have been in here.
void llama_spec_forget_outputs();
