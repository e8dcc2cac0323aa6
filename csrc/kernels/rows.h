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

// Whether a product, or attention, belongs to a batch as small as a verify batch: up to 32 tokens. Whatever computes it
// then must give each row the result that it has alone, and wider batches have the engine's fast kernels. Where nobody
// has said how many tokens a graph has (pyllama_spec_set_n_tokens), the rows are counted.
bool pyllama_spec_is_few_rows(const struct ggml_compute_params * params, const struct ggml_tensor * dst);

// Matrices in BF16 or F16; quantised weights. The rows of dst->src[1] are packed in params->wdata already, one after
// the other, in the type that the engine multiplies these by; the pool's counter stands at the number of threads.
bool pyllama_spec_mul_mat_float(const struct ggml_compute_params * params, const struct ggml_tensor * dst);
bool pyllama_spec_takes_rows(  // whether the next one will
    const struct ggml_compute_params * params, const struct ggml_tensor * dst);
bool pyllama_spec_mul_mat_rows(const struct ggml_compute_params * params, const struct ggml_tensor * dst);

// Weights that the engine has interleaved when it loaded them: n_interleaved rows, n_bytes of each in turn. Packs
// the rows of dst->src[1] itself.
bool pyllama_spec_mul_mat_repacked(
    const struct ggml_compute_params * params, const struct ggml_tensor * dst, int n_interleaved, int n_bytes);

// Where the rows of a batch go among experts: counts[e] pairs (slot, token) from rows[2 * e * n_most] on.
struct pyllama_spec_routes {
    const int64_t * counts;
    const int32_t * rows;
    int64_t         n_most;
};

// Experts, interleaved or not (1). Rows are packed and the counter is set as for pyllama_spec_mul_mat_rows.
bool pyllama_spec_mul_mat_id_rows(
    const struct ggml_compute_params * params, const struct ggml_tensor * dst, struct pyllama_spec_routes routes,
    int n_interleaved);

// Bytes that a thread needs beside its operands for a product: scratch() of tiles.h. 0 where the engine's own run.
size_t pyllama_spec_float_scratch(const struct ggml_tensor * dst);
size_t pyllama_spec_block_scratch(const struct ggml_tensor * dst);

// The instructions of each of our kernels in this build, as in "BF16 AVX2, F16 AVX2"; empty where the engine's own run.
const char * pyllama_spec_float_kernels(void);
const char * pyllama_spec_block_kernels(void);

#ifdef __cplusplus
}
#endif
