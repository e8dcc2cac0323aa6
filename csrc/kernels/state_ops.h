// Call sites of vendor/patches/0009 in the engine's CPU operations on recurrent states. All threads of the pool make
// the call and share the work. False, and nothing is done, where the shape is not what it is made for.
#pragma once

#include "ggml.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

// ggml_ssm_conv(): several channels side by side.
bool pyllama_spec_short_conv(struct ggml_tensor * dst, int ith, int nth);

// ggml_ssm_scan() with a decay for each number of the state (Mamba-1), snapshots too: a channel goes through the tokens
// in registers, and exponentials are computed a vector at a time.
bool pyllama_spec_mamba_scan(struct ggml_tensor * dst, int ith, int nth);

#ifdef __cplusplus
}
#endif
