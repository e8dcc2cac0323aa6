// Call sites of vendor/patches/0004 in the engine's CPU backend: matrix products for few rows.
//
// All threads of the pool make the call with the same arguments, and share the work. Returns false, and does nothing,
// if the function does not support the types, the shape or the processor.
#pragma once

#include "ggml.h"

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_compute_params;

// Says whether a product, or attention, belongs to a batch as small as a verify batch: up to 32 tokens. Every kernel
// must then give each row the result that it has alone; wider batches use the engine's fast kernels. If the graph's
// number of tokens is unknown (pyllama_spec_set_n_tokens), the rows are counted.
bool pyllama_spec_is_few_rows(const struct ggml_compute_params * params, const struct ggml_tensor * dst);

// The first function is for BF16 or F16 matrices, the others for quantised weights. The rows of dst->src[1] are already
// packed in params->wdata, one after the other, in the type that the engine multiplies these weights by. The pool's
// counter equals the number of threads.
bool pyllama_spec_mul_mat_float(const struct ggml_compute_params * params, const struct ggml_tensor * dst);
bool pyllama_spec_takes_rows(  // says whether the next function will compute it
    const struct ggml_compute_params * params, const struct ggml_tensor * dst);
bool pyllama_spec_mul_mat_rows(const struct ggml_compute_params * params, const struct ggml_tensor * dst);

// The experts of a batch's rows: counts[e] pairs (slot, token), from rows[2 * e * n_most] on.
struct pyllama_spec_routes {
    const int64_t * counts;
    const int32_t * rows;
    int64_t         n_most;
};

// For experts. Rows are packed and the counter is set as for pyllama_spec_mul_mat_rows.
bool pyllama_spec_mul_mat_id_rows(
    const struct ggml_compute_params * params, const struct ggml_tensor * dst, struct pyllama_spec_routes routes);

// Bytes that a thread needs for a product beside its operands: scratch() of tiles.h. 0 if the engine's own kernel runs.
size_t pyllama_spec_float_scratch(const struct ggml_tensor * dst);
size_t pyllama_spec_block_scratch(const struct ggml_tensor * dst);

// The buffer type for weights that are repacked at loading (repacked.h); NULL if this processor has no kernels for them.
struct ggml_backend_buffer_type * pyllama_spec_repacked_buffer_type(void);

// Sets, on the caller's thread, whether models that it loads next use it.
void pyllama_spec_set_repacking(int is_on);

// Gives the pages of a file's mapping back that have been copied.
void pyllama_spec_give_back(const void * mapped, size_t n_bytes);

// Lists our kernels in this build with their instructions, as in "BF16 AVX2, F16 AVX2"; empty if the engine's own run.
const char * pyllama_spec_float_kernels(void);
const char * pyllama_spec_block_kernels(void);

#ifdef __cplusplus
}
#endif
