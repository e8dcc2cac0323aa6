// Code that the kernels for few rows share: operands, and how a product is split into tiles and distributed.
#pragma once

#include "thread_pool.h"

#include "ggml-cpu-impl.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

// Forces inlining into a tile: compilers consider the function too long, and numbers would pass through memory.
#if defined(__GNUC__)
#define PYLLAMA_SPEC_INLINE __attribute__((always_inline))
#else
#define PYLLAMA_SPEC_INLINE
#endif

namespace pyllama_spec {

constexpr int WIDTH = 6;  // maximum number of activation rows in a tile whose sums stay in registers

// This thread's memory for unpacking a tile's activations. The caller's thread allocates it before the graph: a worker
// could not report a failure, and the activations may be too large for a stack of unknown size. All products use the
// same memory, so that it stays in the cache.
inline char * scratch(const ggml_compute_params * params, [[maybe_unused]] size_t n_bytes) {
    const auto * pool = (const pyllama_spec_pool *) params->threadpool;
    GGML_ASSERT(pool->n_slot >= n_bytes);
    return pool->scratch + (size_t) params->ith * pool->n_slot;
}

// Says whether the engine's own kernels were requested.
inline bool is_stock(const ggml_compute_params * params) {
    return ((const pyllama_spec_pool *) params->threadpool)->is_stock;
}

struct Operands {
    const char * weights;
    size_t       weight_stride;  // bytes from row to row, or between groups of interleaved rows
    const char * rows;
    size_t       row_stride;
    char *       out;
    size_t       out_stride;
    int64_t      n_k;
};

// Calls f with the width as a constant: tiles are compiled for each width.
template <class F> void for_width(int64_t width, F f) {
    switch (width) {
        case 1: return f(std::integral_constant<int, 1>());
        case 2: return f(std::integral_constant<int, 2>());
        case 3: return f(std::integral_constant<int, 3>());
        case 4: return f(std::integral_constant<int, 4>());
        case 5: return f(std::integral_constant<int, 5>());
        default: return f(std::integral_constant<int, 6>());
    }
}

// Calls f(first row, width) for tiles of about equal width.
template <class F> void for_tiles(int64_t n_rows, F f) {
    int64_t n_tiles = (n_rows + WIDTH - 1) / WIDTH;
    for (int64_t i1 = 0; i1 < n_rows; --n_tiles) {
        const int64_t width = (n_rows - i1 + n_tiles - 1) / n_tiles;
        f(i1, width);
        i1 += width;
    }
}

// Calls f(matrix, first weight row, end) for chunks that the pool's threads take one after the other, so that a delayed
// thread does not delay the others. There are two chunks for each thread: the beginning of a chunk is never cached, and
// with eight chunks single rows of Q4_0 took a tenth longer.
template <class F> void for_chunks(const ggml_compute_params * params, int64_t n_out, int64_t n_matrices, F f) {
    const int64_t height   = std::clamp<int64_t>(n_out * n_matrices / (params->nth * 2) / 16 * 16, 16, 256);
    const int64_t n_chunks = (n_out + height - 1) / height;
    for (int64_t i = params->ith; i < n_chunks * n_matrices; i = ggml_threadpool_chunk_add(params->threadpool, 1)) {
        const int64_t begin = i % n_chunks * height;
        f(i / n_chunks, begin, std::min(n_out, begin + height));
    }
}

}  // namespace pyllama_spec
