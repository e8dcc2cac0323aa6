// Tiles of BF16 and F16 products with AVX2, two weight rows high.
#pragma once

#include "tiles.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include <immintrin.h>

#include <cstring>

namespace pyllama_spec::avx2 {

constexpr int64_t SIZE  = 2;   // bytes of a number in both types
constexpr int64_t LANES = 16;  // numbers per step, in two halves

// A BF16 is the upper half of a float: values at even positions are shifted into place, values at odd positions are
// already there.
struct Bf16 {
    static __m256 first(const char * p) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256((const __m256i *) p), 16));
    }

    static __m256 second(const char * p) {
        const __m256i upper = _mm256_set1_epi32((int) 0xffff0000);
        return _mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256((const __m256i *) p), upper));
    }
};

struct F16 {
    static __m256 first(const char * p) {
        return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) p));
    }

    static __m256 second(const char * p) {
        return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) p + 1));
    }
};

inline __m128 add_halves(__m256 x) {
    return _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
}

// Sums the lanes of four vectors, all in the same order: lanes that are 4 apart, then 2, then 1. So the sum is the same
// if a text's cells lie elsewhere in the cache, and even wrap around, as in a sliding window that was saved and
// restored.
inline __m128 sum_lanes(__m256 a, __m256 b, __m256 c, __m256 d) {
    const __m128 x = add_halves(a), y = add_halves(b), z = add_halves(c), u = add_halves(d);
    const __m128 xy = _mm_add_ps(_mm_movelh_ps(x, y), _mm_movehl_ps(y, x));
    const __m128 zu = _mm_add_ps(_mm_movelh_ps(z, u), _mm_movehl_ps(u, z));
    return _mm_add_ps(_mm_shuffle_ps(xy, zu, 0x88), _mm_shuffle_ps(xy, zu, 0xdd));
}

template <class T> struct Tiles {
    static constexpr int64_t HEIGHT = 2;  // 2 * 6 sums, two weights and a mask fill 15 of 16 registers

    // The activations of a tile as floats, half a step of each row in turn: every weight row reads them again.
    struct Rows {
        float * const floats;

        explicit Rows(char * work) : floats((float *) work) {}

        static size_t n_bytes(int64_t n_k) {
            return (size_t) ((n_k + LANES - 1) / LANES * LANES * WIDTH) * sizeof(float);
        }

        template <int W> void fill(const Operands & op, int64_t i1) {
            float * to = floats;
            for (int64_t k = 0; k < op.n_k; k += LANES, to += 8 * W) {
                for (int w = 0; w < W; ++w, to += 8) {
                    const char * from = op.rows + (i1 + w) * op.row_stride + k * SIZE;
                    char part[LANES * SIZE] = {};
                    if (k + LANES > op.n_k) {
                        from = (const char *) std::memcpy(part, from, (op.n_k - k) * SIZE);
                    }
                    _mm256_store_ps(to, T::first(from));
                    _mm256_store_ps(to + 8 * W, T::second(from));
                }
            }
        }
    };

    template <int H, int W> static void add(__m256 (&sums)[HEIGHT][W], const __m256 (&y)[H], const float * x) {
        for (int w = 0; w < W; ++w) {
            __m256 xw = _mm256_load_ps(x + 8 * w);
#if defined(__GNUC__)
            asm("" : "+x"(xw));  // load once for both weight rows
#endif
            for (int h = 0; h < H; ++h) {
                sums[h][w] = _mm256_fmadd_ps(y[h], xw, sums[h][w]);
            }
        }
    }

    // Inlined even if GCC considers it too large: a call for each tile costs up to a tenth if k is short, as in
    // attention.
    template <int H, int W, bool AHEAD> [[gnu::always_inline]] static void tile(const Operands & op, Rows rows, int64_t i0, int64_t i1) {
        __m256 sums[HEIGHT][W];
        for (int h = 0; h < HEIGHT; ++h) {
            for (int w = 0; w < W; ++w) {
                sums[h][w] = _mm256_setzero_ps();
            }
        }
        const char * weights = op.weights + i0 * op.weight_stride;
        const char * ahead   = weights + 2 * HEIGHT * op.weight_stride;
        const float * x      = rows.floats;
        const int64_t whole  = op.n_k / LANES * LANES * SIZE, rest = op.n_k % LANES;
        for (int64_t k = 0; k < whole; k += LANES * SIZE) {
            if (AHEAD) {
                _mm_prefetch(ahead, _MM_HINT_T0);
                ahead += H * LANES * SIZE;
            }
            __m256 y[H];
            for (int h = 0; h < H; ++h) {
                y[h] = T::first(weights + h * op.weight_stride + k);
            }
            add<H, W>(sums, y, x);
            for (int h = 0; h < H; ++h) {
                y[h] = T::second(weights + h * op.weight_stride + k);
            }
            add<H, W>(sums, y, x + 8 * W);
            x += LANES * W;
        }
        if (rest) {
            char part[H][LANES * SIZE] = {};
            __m256 first[H], second[H];
            for (int h = 0; h < H; ++h) {
                std::memcpy(part[h], weights + h * op.weight_stride + whole, rest * SIZE);
                first[h]  = T::first(part[h]);
                second[h] = T::second(part[h]);
            }
            add<H, W>(sums, first, x);
            add<H, W>(sums, second, x + 8 * W);
        }
        for (int w = 0; w < W; w += 2) {
            const int next = w + 1 < W ? w + 1 : w;
            float four[4];
            _mm_storeu_ps(four, sum_lanes(sums[0][w], sums[1][w], sums[0][next], sums[1][next]));
            for (int i = w; i <= next; ++i) {
                std::memcpy(op.out + (i1 + i) * op.out_stride + i0 * sizeof(float), four + 2 * (i - w), H * sizeof(float));
            }
        }
    }
};

}  // namespace pyllama_spec::avx2

#endif
