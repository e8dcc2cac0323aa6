// Tiles of BF16 and F16 products with AVX-512, four weight rows high.
#pragma once

#include "tiles.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)

#include <immintrin.h>

#include <cstring>

namespace pyllama_spec::avx512 {

constexpr int64_t SIZE = 2;  // bytes of a number in both types

#if defined(__AVX512BF16__)
struct Bf16 {
    using Vector = __m512bh;
    static constexpr int64_t LANES = 32;  // products per instruction

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

// The sums of four vectors. Each lane of the tree adds the same pairs, so each sum is independent of its neighbours.
inline __m128 sum_lanes(__m512 a, __m512 b, __m512 c, __m512 d) {
    const __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    const __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
    __m512 s = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
    s = _mm512_add_ps(s, _mm512_permute_ps(s, 0x4e));
    s = _mm512_add_ps(s, _mm512_permute_ps(s, 0xb1));
    const __m512i first_of_each = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 8, 4, 0);
    return _mm512_castps512_ps128(_mm512_permutexvar_ps(first_of_each, s));
}

template <class T> struct Tiles {
    static constexpr int64_t HEIGHT = 4;  // 4 * 6 sums, 6 activations and a weight fill 31 registers

    // Activations are used in their packed form.
    struct Rows {
        explicit Rows(char *) {}

        static size_t n_bytes(int64_t) {
            return 0;
        }

        template <int W> void fill(const Operands &, int64_t) {}
    };

    template <int H, int W, bool AHEAD> static void tile(const Operands & op, Rows, int64_t i0, int64_t i1) {
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
            // A single row is limited only by memory, which is read fastest in one stream. Keys and values lie apart: the
            // processor does not fetch the next ones itself.
            const bool is_apart = op.weight_stride > (size_t) (op.n_k * SIZE);
            for (int h = 0; h < H; ++h) {
                const char * weight = weights + h * op.weight_stride;
                for (int64_t k = 0; is_apart && k < whole; k += 64) {
                    _mm_prefetch(weight + 16 * op.weight_stride + k, _MM_HINT_T0);
                }
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
};

}  // namespace pyllama_spec::avx512

#endif
