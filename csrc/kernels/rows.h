// Call sites of vendor/patches/0004 in the engine's CPU backend: matrix products for a few rows.
//
// All threads of the pool make the call, with the same arguments, and share the work. False, and nothing is
// done, where the types, the shape or the processor are not what it is made for.
#pragma once

#include "ggml.h"

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_compute_params;

// Whether a product belongs to a batch as small as a verify batch. From 8 rows on the engine computes K-quants in
// tiles, which round otherwise than single rows do.
static inline bool pyllama_spec_is_few_rows(const struct ggml_tensor * dst) {
    const struct ggml_tensor * rows = dst->src[1];
    // Of experts' products the tokens are in the third dimension.
    return (dst->op == GGML_OP_MUL_MAT_ID ? 1 : rows->ne[1]) * rows->ne[2] * rows->ne[3] <= 32;
}

// Matrices in BF16 or F16, weights in Q8_0. The rows of dst->src[1] are packed in params->wdata already, one after
// the other, in the type that the engine multiplies these by; the pool's counter stands at the number of threads.
bool pyllama_spec_mul_mat_float(const struct ggml_compute_params * params, const struct ggml_tensor * dst);
bool pyllama_spec_mul_mat_q8_0(const struct ggml_compute_params * params, const struct ggml_tensor * dst);

// Weights that the engine has interleaved when it loaded them: n_interleaved rows, n_bytes of each in turn. Packs
// the rows of dst->src[1] itself.
bool pyllama_spec_mul_mat_repacked(
    const struct ggml_compute_params * params, const struct ggml_tensor * dst, int n_interleaved, int n_bytes);

// Bytes that a thread needs beside its operands for a product: scratch() of tiles.h. 0 where the engine's own run.
size_t pyllama_spec_float_scratch(const struct ggml_tensor * dst);
size_t pyllama_spec_byte_scratch(const struct ggml_tensor * dst);

// The instructions of each of our kernels in this build, as in "BF16 AVX2, F16 AVX2"; empty where the engine's own run.
const char * pyllama_spec_float_kernels(void);
const char * pyllama_spec_byte_kernels(void);

#ifdef __cplusplus
}
#endif
