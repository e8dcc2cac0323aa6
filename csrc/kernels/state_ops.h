// Call sites of vendor/patches/0009 in the engine's CPU operations on recurrent states. All threads of the pool make
// the call and share the work. Returns false, and does nothing, for an unsupported shape.
#pragma once

#include "ggml.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

// ggml_ssm_conv(): computes several channels in parallel.
bool pyllama_spec_short_conv(struct ggml_tensor * dst, int ith, int nth);

// ggml_ssm_scan() with a decay for each element of the state (Mamba-1), snapshots included: a channel goes through the
// tokens in registers, and exponentials are computed a vector at a time.
bool pyllama_spec_mamba_scan(struct ggml_tensor * dst, int ith, int nth);

#ifdef __cplusplus
}
#endif
