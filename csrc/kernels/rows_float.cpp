// BF16 and F16 matrices times the few rows of a verify batch: weights, and the KV cache in attention. Compiled into the
// engine's CPU backend, with its flags.
//
// The engine computes one dot product at a time; five rows then take three times as long as one, though both read the
// same weights from memory. Here a block of weights stays in registers for all rows. A result depends only on its
// weight row and its activation row, not on the number of rows or the thread: each result has one accumulator, which
// adds in the order of k, and one tree that sums its lanes.
#include "float_avx2.h"
#include "float_avx512.h"
#include "float_neon.h"
#include "rows.h"
#include "tiles.h"

#include "ggml-cpu.h"

#include <cstdint>

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define HAS_F16 "F16 AVX-512"
using F16 = pyllama_spec::avx512::Tiles<pyllama_spec::avx512::F16>;
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define HAS_F16 "F16 AVX2"
using F16 = pyllama_spec::avx2::Tiles<pyllama_spec::avx2::F16>;
#elif defined(__aarch64__)
#define HAS_F16 "F16 NEON"
using F16 = pyllama_spec::neon::Tiles<pyllama_spec::neon::F16>;
#endif

#if defined(__AVX512BF16__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define HAS_BF16 "BF16 AVX-512"
using Bf16 = pyllama_spec::avx512::Tiles<pyllama_spec::avx512::Bf16>;
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define HAS_BF16 "BF16 AVX2"
using Bf16 = pyllama_spec::avx2::Tiles<pyllama_spec::avx2::Bf16>;
#elif defined(__aarch64__)
#define HAS_BF16 "BF16 NEON"
using Bf16 = pyllama_spec::neon::Tiles<pyllama_spec::neon::Bf16>;
#endif

namespace {

using namespace pyllama_spec;

template <class T, int W, bool AHEAD>
void column(const Operands & op, typename T::Rows rows, int64_t i0, int64_t end0, int64_t i1) {
    for (; i0 + T::HEIGHT <= end0; i0 += T::HEIGHT) {
        T::template tile<T::HEIGHT, W, AHEAD>(op, rows, i0, i1);
    }
    for (; i0 < end0; ++i0) {
        T::template tile<1, W, AHEAD>(op, rows, i0, i1);
    }
}

template <class T>
void chunk(const Operands & op, typename T::Rows rows, int64_t begin0, int64_t end0, int64_t n_rows) {
    for_tiles(n_rows, [&](int64_t i1, int64_t width) {
        for_width(width, [&](auto w) {
            rows.template fill<w()>(op, i1);
            // The first tile prefetches the weights; later tiles find them in the cache.
            if (i1 == 0) {
                column<T, w(), true>(op, rows, begin0, end0, i1);
            } else {
                column<T, w(), false>(op, rows, begin0, end0, i1);
            }
        });
    });
}

template <class T> void multiply(const ggml_compute_params * params, const ggml_tensor * dst) {
    const ggml_tensor * weights = dst->src[0];
    const ggml_tensor * rows    = dst->src[1];
    const int64_t n_k = weights->ne[0], n_out = weights->ne[1];
    // Consecutive matrices that use the same weights, such as query heads with the same keys, are treated as more rows.
    const int64_t n_shared   = rows->ne[2] / weights->ne[2];
    const int64_t n_rows     = rows->ne[1] * n_shared;
    const int64_t n_matrices = weights->ne[2] * rows->ne[3];
    const size_t  row_stride = n_k * sizeof(uint16_t);
    typename T::Rows unpacked(scratch(params, T::Rows::n_bytes(n_k)));
    for_chunks(params, n_out, n_matrices, [&](int64_t matrix, int64_t begin, int64_t end) {
        const int64_t i2 = matrix % weights->ne[2], i3 = matrix / weights->ne[2];
        const Operands op = {
            (const char *) weights->data + i2 * weights->nb[2] + i3 / (rows->ne[3] / weights->ne[3]) * weights->nb[3],
            weights->nb[1],
            (const char *) params->wdata + matrix * n_rows * row_stride,
            row_stride,
            (char *) dst->data + i2 * n_shared * dst->nb[2] + i3 * dst->nb[3],
            dst->nb[1],
            n_k,
        };
        chunk<T>(op, unpacked, begin, end, n_rows);
    });
}

}  // namespace

bool pyllama_spec_mul_mat_float(const ggml_compute_params * params, const ggml_tensor * dst) {
    // Rows of several matrices are computed together.
    const bool is_packed = dst->nb[2] == dst->nb[1] * dst->ne[1];
    if (is_stock(params) || dst->src[1]->type != GGML_TYPE_F32 || !is_packed) {
        return false;
    }
    switch (dst->src[0]->type) {
#if defined(HAS_F16)
        case GGML_TYPE_F16: multiply<F16>(params, dst); return true;
#endif
#if defined(HAS_BF16)
        case GGML_TYPE_BF16: multiply<Bf16>(params, dst); return true;
#endif
        default: return false;
    }
}

size_t pyllama_spec_float_scratch(const ggml_tensor * dst) {
    switch (dst->src[0]->type) {
#if defined(HAS_F16)
        case GGML_TYPE_F16: return F16::Rows::n_bytes(dst->src[0]->ne[0]);
#endif
#if defined(HAS_BF16)
        case GGML_TYPE_BF16: return Bf16::Rows::n_bytes(dst->src[0]->ne[0]);
#endif
        default: return 0;
    }
}

const char * pyllama_spec_float_kernels(void) {
#if defined(HAS_BF16)
    return HAS_BF16 ", " HAS_F16;
#else
    return "";
#endif
}
