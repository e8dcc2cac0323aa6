// What the kernels for a few rows have in common: operands, and how a product is cut into tiles and shared out.
#pragma once

#include "thread_pool.h"

#include "ggml-cpu-impl.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace pyllama_spec {

constexpr int WIDTH = 6;  // the most activation rows of a tile, so that its sums stay in registers

// Where this thread unpacks the activations of a tile. The caller's thread allocates it before the graph begins: on a
// worker a failure would have nobody to tell, and a tile's activations are too many for a stack of unknown size. It is
// the same place for every product: memory that moved between them would be in no cache.
inline char * scratch(const ggml_compute_params * params, [[maybe_unused]] size_t n_bytes) {
    const auto * pool = (const pyllama_spec_pool *) params->threadpool;
    GGML_ASSERT(pool->n_slot >= n_bytes);
    return pool->scratch + (size_t) params->ith * pool->n_slot;
}

// Whether the engine's own kernels were asked for.
inline bool is_stock(const ggml_compute_params * params) {
    return ((const pyllama_spec_pool *) params->threadpool)->is_stock;
}

struct Operands {
    const char * weights;
    size_t       weight_stride;  // bytes from row to row, or from group to group of interleaved rows
    const char * rows;
    size_t       row_stride;
    char *       out;
    size_t       out_stride;
    int64_t      n_k;
};

// Calls f(a constant of the width): tiles are compiled for each.
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

// Calls f(matrix, first weight row, end) for chunks that the threads of the pool take one after the other, so that one
// which is held up does not hold up the others. Two for each thread: the beginning of a chunk is in no cache, and
// eight made single rows of Q4_0 a tenth slower.
template <class F> void for_chunks(const ggml_compute_params * params, int64_t n_out, int64_t n_matrices, F f) {
    const int64_t height   = std::clamp<int64_t>(n_out * n_matrices / (params->nth * 2) / 16 * 16, 16, 256);
    const int64_t n_chunks = (n_out + height - 1) / height;
    for (int64_t i = params->ith; i < n_chunks * n_matrices; i = ggml_threadpool_chunk_add(params->threadpool, 1)) {
        const int64_t begin = i % n_chunks * height;
        f(i / n_chunks, begin, std::min(n_out, begin + height));
    }
}

}  // namespace pyllama_spec
