// BF16 and F16 matrices times the few rows of a verify batch: weights, and the KV cache in attention. Compiled into
// the engine's CPU backend, with its flags.
//
// The engine computes one dot product at a time; for five rows that takes three times as long as for one,
// though both read the same weights from memory. Here a block of weights stays in registers for all rows.
// A result depends on its weight row and its activation row alone, never on how many rows there are or
// which thread computes it: one accumulator per result, in the order of k, and one tree to sum its lanes.
#include "rows.h"
#include "tiles.h"

#include "ggml-cpu.h"

#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)

#include <immintrin.h>

namespace {

using namespace pyllama_spec;

constexpr int64_t HEIGHT = 4;  // weight rows of a tile: 4 * 6 sums, 6 activations and a weight fill 31 registers
constexpr int64_t SIZE   = 2;  // bytes of a number, in both types

#if defined(__AVX512BF16__)
struct Bf16 {
    using Vector = __m512bh;
    static constexpr int64_t LANES = 32;  // products of one instruction

    static Vector load(const char * p) {
        return (__m512bh) _mm512_loadu_si512(p);
    }

    static Vector load_part(const char * p, int64_t n) {
        return (__m512bh) _mm512_maskz_loadu_epi16((__mmask32) ((1ull << n) - 1), p);
    }

    static __m512 add(__m512 sum, Vector a, Vector b) {
        return _mm512_dpbf16_ps(sum, a, b);
    }
};
#endif

struct F16 {
    using Vector = __m512;
    static constexpr int64_t LANES = 16;

    static Vector load(const char * p) {
        return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) p));
    }

    static Vector load_part(const char * p, int64_t n) {
        return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16((__mmask16) ((1u << n) - 1), p));
    }

    static __m512 add(__m512 sum, Vector a, Vector b) {
        return _mm512_fmadd_ps(a, b, sum);
    }
};

// The sums of four vectors. Every lane of the tree adds the same pairs, so each sum is independent of its neighbours.
__m128 sum_lanes(__m512 a, __m512 b, __m512 c, __m512 d) {
    const __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    const __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
    __m512 s = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
    s = _mm512_add_ps(s, _mm512_permute_ps(s, 0x4e));
    s = _mm512_add_ps(s, _mm512_permute_ps(s, 0xb1));
    const __m512i first_of_each = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 8, 4, 0);
    return _mm512_castps512_ps128(_mm512_permutexvar_ps(first_of_each, s));
}

template <class T, int H, int W, bool AHEAD> void tile(const Operands & op, int64_t i0, int64_t i1) {
    __m512 sums[HEIGHT][W];
    for (int h = 0; h < HEIGHT; ++h) {
        for (int w = 0; w < W; ++w) {
            sums[h][w] = _mm512_setzero_ps();
        }
    }
    const char * weights = op.weights + i0 * op.weight_stride;
    const char * rows    = op.rows + i1 * op.row_stride;
    const int64_t whole  = op.n_k / T::LANES * T::LANES * SIZE, rest = op.n_k % T::LANES;
    if (W == 1) {
        // Memory is all that a single row waits for, and it is read fastest in one stream.
        for (int h = 0; h < H; ++h) {
            const char * weight = weights + h * op.weight_stride;
            for (int64_t k = 0; k < whole; k += T::LANES * SIZE) {
                sums[h][0] = T::add(sums[h][0], T::load(weight + k), T::load(rows + k));
            }
        }
    } else {
        const char * ahead = weights + HEIGHT * op.weight_stride;
        for (int64_t k = 0; k < whole; k += T::LANES * SIZE) {
            typename T::Vector x[W];
            for (int w = 0; w < W; ++w) {
                x[w] = T::load(rows + w * op.row_stride + k);
            }
            for (int h = 0; h < H; ++h) {
                if (AHEAD) {
                    _mm_prefetch(ahead, _MM_HINT_T0);
                    ahead += T::LANES * SIZE;
                }
                const typename T::Vector y = T::load(weights + h * op.weight_stride + k);
                for (int w = 0; w < W; ++w) {
                    sums[h][w] = T::add(sums[h][w], y, x[w]);
                }
            }
        }
    }
    if (rest) {
        for (int h = 0; h < H; ++h) {
            const typename T::Vector y = T::load_part(weights + h * op.weight_stride + whole, rest);
            for (int w = 0; w < W; ++w) {
                sums[h][w] = T::add(sums[h][w], y, T::load_part(rows + w * op.row_stride + whole, rest));
            }
        }
    }
    for (int w = 0; w < W; ++w) {
        float four[HEIGHT];
        _mm_storeu_ps(four, sum_lanes(sums[0][w], sums[1][w], sums[2][w], sums[3][w]));
        std::memcpy(op.out + (i1 + w) * op.out_stride + i0 * sizeof(float), four, H * sizeof(float));
    }
}

template <class T, int W, bool AHEAD> void column(const Operands & op, int64_t i0, int64_t end0, int64_t i1) {
    for (; i0 + HEIGHT <= end0; i0 += HEIGHT) {
        tile<T, HEIGHT, W, AHEAD>(op, i0, i1);
    }
    for (; i0 < end0; ++i0) {
        tile<T, 1, W, AHEAD>(op, i0, i1);
    }
}

template <class T> void chunk(const Operands & op, int64_t begin0, int64_t end0, int64_t n_rows) {
    for_tiles(n_rows, [&](int64_t i1, int64_t width) {
        for_width(width, [&](auto w) {
            // The first tile brings the weights; the others find them in the cache.
            if (i1 == 0) {
                column<T, w(), true>(op, begin0, end0, i1);
            } else {
                column<T, w(), false>(op, begin0, end0, i1);
            }
        });
    });
}

template <class T> void multiply(const ggml_compute_params * params, const ggml_tensor * dst) {
    const ggml_tensor * weights = dst->src[0];
    const ggml_tensor * rows    = dst->src[1];
    const int64_t n_k = weights->ne[0], n_out = weights->ne[1];
    // Matrices that use the same weights, as query heads use the same keys, lie one after the other: more rows.
    const int64_t n_shared   = rows->ne[2] / weights->ne[2];
    const int64_t n_rows     = rows->ne[1] * n_shared;
    const int64_t n_matrices = weights->ne[2] * rows->ne[3];
    const size_t  row_stride = n_k * SIZE;
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
        chunk<T>(op, begin, end, n_rows);
    });
}

}  // namespace

bool pyllama_spec_mul_mat_float(const ggml_compute_params * params, const ggml_tensor * dst) {
    // Rows of several matrices are taken together.
    const bool is_packed = dst->nb[2] == dst->nb[1] * dst->ne[1];
    if (dst->src[1]->type != GGML_TYPE_F32 || !is_packed) {
        return false;
    }
    switch (dst->src[0]->type) {
        case GGML_TYPE_F16: multiply<F16>(params, dst); return true;
#if defined(__AVX512BF16__)
        case GGML_TYPE_BF16: multiply<Bf16>(params, dst); return true;
#endif
        default: return false;
    }
}

#else

bool pyllama_spec_mul_mat_float(const ggml_compute_params *, const ggml_tensor *) {
    return false;
}

#endif
