// Tiles of BF16 and F16 products: one code for AVX2, AVX-512 and NEON. Numbers are multiplied as floats, except BF16 with
// AVX-512, whose instruction multiplies pairs of them.
#pragma once

#include "tiles.h"

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include <cstring>

namespace pyllama_spec {

constexpr int64_t SIZE = 2;  // bytes of a number in both types

// Each set of instructions has Vectors: sums F, HEIGHT weight rows of a tile, and how many rows it prefetches ahead (none:
// 0). A type of numbers has, in addition, X, what is multiplied, and N_PARTS of these in LANES numbers.

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)

struct Vectors512 {
    using F = __m512;
    static constexpr int64_t HEIGHT = 4, N_AHEAD = 4;  // 4 * 6 sums, four weights and an activation fill 29 of 32 registers
    // A single row is limited only by memory, which is read fastest in one stream.
    static constexpr bool IS_ONE_STREAM = true;

    // The sums of four vectors. Each lane of the tree adds the same pairs, so each sum is independent of its neighbours.
    static void store_sums(float * to, F a, F b, F c, F d) {
        const F ab = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
        const F cd = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
        F s = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
        s = _mm512_add_ps(s, _mm512_permute_ps(s, 0x4e));
        s = _mm512_add_ps(s, _mm512_permute_ps(s, 0xb1));
        const __m512i first_of_each = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 8, 4, 0);
        _mm_storeu_ps(to, _mm512_castps512_ps128(_mm512_permutexvar_ps(first_of_each, s)));
    }
};

#if defined(__AVX512BF16__)
struct Bf16Of512 : Vectors512 {
    using X = __m512bh;
    static constexpr int64_t LANES = 32, N_PARTS = 1;

    template <int P> static X part(const void * p) { return (X) _mm512_loadu_si512(p); }
    static F add(F sum, X a, X b) { return _mm512_dpbf16_ps(sum, a, b); }
};
#endif

struct F16Of512 : Vectors512 {
    using X = __m512;
    static constexpr int64_t LANES = 16, N_PARTS = 1;

    template <int P> static X part(const void * p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) p)); }
    static F add(F sum, X a, X b) { return _mm512_fmadd_ps(a, b, sum); }
};

#endif

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

struct Vectors256 {
    using F = __m256;
    using X = __m256;
    static constexpr int64_t HEIGHT = 2, N_AHEAD = 4;  // 2 * 6 sums, two weights and a mask fill 15 of 16 registers
    static constexpr int64_t LANES = 16, N_PARTS = 2;
    static constexpr bool IS_ONE_STREAM = false;

    static F add(F sum, X a, X b) { return _mm256_fmadd_ps(a, b, sum); }
    static __m128 halves(F x) { return _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1)); }

    // Sums the lanes of four vectors, all in the same order: lanes that are 4 apart, then 2, then 1. So the sum is the same
    // if a text's cells lie elsewhere in the cache, and even wrap around, as in a sliding window that was saved and restored.
    static void store_sums(float * to, F a, F b, F c, F d) {
        const __m128 x = halves(a), y = halves(b), z = halves(c), u = halves(d);
        const __m128 xy = _mm_add_ps(_mm_movelh_ps(x, y), _mm_movehl_ps(y, x));
        const __m128 zu = _mm_add_ps(_mm_movelh_ps(z, u), _mm_movehl_ps(u, z));
        _mm_storeu_ps(to, _mm_add_ps(_mm_shuffle_ps(xy, zu, 0x88), _mm_shuffle_ps(xy, zu, 0xdd)));
    }
};

// A BF16 is the upper half of a float: values at even positions are shifted into place, values at odd positions are
// already there.
struct Bf16Of256 : Vectors256 {
    template <int P> static X part(const void * p) {
        const __m256i x = _mm256_loadu_si256((const __m256i *) p);
        return _mm256_castsi256_ps(P == 0 ? _mm256_slli_epi32(x, 16) : _mm256_and_si256(x, _mm256_set1_epi32((int) 0xffff0000)));
    }
};

struct F16Of256 : Vectors256 {
    template <int P> static X part(const void * p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) p + P)); }
};

#elif defined(__aarch64__)

// The instructions for BF16 round otherwise for a single row, and half precision sums are too coarse.
struct VectorsOfNeon {
    using F = float32x4_t;
    using X = float32x4_t;
    static constexpr int64_t HEIGHT = 4, N_AHEAD = 0;  // 4 * 6 sums, four weights and an activation fill 29 of 32 registers
    static constexpr int64_t LANES = 8, N_PARTS = 2;
    static constexpr bool IS_ONE_STREAM = false;

    static F add(F sum, X a, X b) { return vfmaq_f32(sum, a, b); }

    // Lanes that are 2 apart, then 1: as with AVX2.
    static void store_sums(float * to, F a, F b, F c, F d) {
        for (const F x : { a, b, c, d }) {
            const float32x2_t two = vadd_f32(vget_low_f32(x), vget_high_f32(x));
            *to++ = vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
        }
    }
};

struct Bf16OfNeon : VectorsOfNeon {
    template <int P> static X part(const void * p) {
        const uint16x8_t x = vld1q_u16((const uint16_t *) p);
        return vreinterpretq_f32_u32(P == 0 ? vshll_n_u16(vget_low_u16(x), 16) : vshll_high_n_u16(x, 16));
    }
};

struct F16OfNeon : VectorsOfNeon {
    template <int P> static X part(const void * p) {
        const float16x8_t x = vreinterpretq_f16_u16(vld1q_u16((const uint16_t *) p));
        return P == 0 ? vcvt_f32_f16(vget_low_f16(x)) : vcvt_high_f32_f16(x);
    }
};

#endif

template <class T> struct Tiles : T {
    using X = typename T::X;
    static constexpr int64_t HEIGHT = T::HEIGHT, LANES = T::LANES, N_PARTS = T::N_PARTS;

    // The activations of a tile, unpacked, a part of a step of each row in turn: every weight row reads them again.
    struct Rows {
        X * const parts;

        explicit Rows(char * work) : parts((X *) work) {}

        static size_t n_bytes(int64_t n_k) {
            return (size_t) ((n_k + LANES - 1) / LANES * N_PARTS * WIDTH) * sizeof(X);
        }

        template <int W> void fill(const Operands & op, int64_t i1) {
            X * to = parts;
            for (int64_t k = 0; k < op.n_k; k += LANES, to += N_PARTS * W) {
                for (int w = 0; w < W; ++w) {
                    Whole whole(op.rows + (i1 + w) * op.row_stride + k * SIZE, op.n_k - k);
                    to[w] = T::template part<0>(whole.at);
                    if constexpr (N_PARTS == 2) {
                        to[w + W] = T::template part<1>(whole.at);
                    }
                }
            }
        }
    };

    // LANES numbers, of which the last step of a row has fewer: then a copy with zeros.
    struct Whole {
        char         copy[LANES * SIZE];
        const char * at;

        inline PYLLAMA_SPEC_INLINE Whole(const char * from, int64_t n) : at(from) {
            if (n < LANES) {
                std::memset(copy, 0, sizeof(copy));
                at = (const char *) std::memcpy(copy, from, n * SIZE);
            }
        }
    };

    template <int H, int W>
    static inline PYLLAMA_SPEC_INLINE void add(typename T::F (&sums)[W][HEIGHT], const X (&y)[H], const X * x) {
        for (int w = 0; w < W; ++w) {
            X xw = x[w];
#if defined(__AVX2__) && defined(__GNUC__)
            asm("" : "+v"(xw));  // load once for all weight rows
#endif
            for (int h = 0; h < H; ++h) {
                sums[w][h] = T::add(sums[w][h], y[h], xw);
            }
        }
    }

    // A step of H weight rows: `from` gives a row's numbers.
    template <int H, int W, class At>
    static inline PYLLAMA_SPEC_INLINE void step(typename T::F (&sums)[W][HEIGHT], const X * x, At from) {
        X y[H];
        for (int h = 0; h < H; ++h) {
            y[h] = T::template part<0>(from(h));
        }
        add<H, W>(sums, y, x);
        if constexpr (N_PARTS == 2) {
            for (int h = 0; h < H; ++h) {
                y[h] = T::template part<1>(from(h));
            }
            add<H, W>(sums, y, x + W);
        }
    }

    // Inlined even if GCC considers it too large: a call for each tile costs up to a tenth if k is short, as in
    // attention.
    template <int H, int W, bool AHEAD>
    static inline PYLLAMA_SPEC_INLINE void tile(const Operands & op, Rows rows, int64_t i0, int64_t i1) {
        typename T::F sums[W][HEIGHT] = {};
        const char * weights = op.weights + i0 * op.weight_stride;
        const char * ahead   = weights + T::N_AHEAD * op.weight_stride;
        const X * x          = rows.parts;
        const int64_t whole  = op.n_k / LANES * LANES;
        if constexpr (W == 1 && T::IS_ONE_STREAM) {
            for (int h = 0; h < H; ++h) {
                for (int64_t k = 0; k < whole; k += LANES) {
                    sums[0][h] = T::add(sums[0][h], T::template part<0>(weights + h * op.weight_stride + k * SIZE), x[k / LANES]);
                }
            }
            x += whole / LANES;
        } else {
            for (int64_t k = 0; k < whole; k += LANES, x += N_PARTS * W) {
                if constexpr (AHEAD && T::N_AHEAD > 0) {
                    for (int64_t i = 0; i < H * LANES * SIZE; i += 64) {
                        __builtin_prefetch(ahead + i);
                    }
                    ahead += H * LANES * SIZE;
                }
                step<H, W>(sums, x, [&](int h) PYLLAMA_SPEC_INLINE { return weights + h * op.weight_stride + k * SIZE; });
            }
        }
        if (whole < op.n_k) {
            char last[H][LANES * SIZE] = {};
            for (int h = 0; h < H; ++h) {
                std::memcpy(last[h], weights + h * op.weight_stride + whole * SIZE, (op.n_k - whole) * SIZE);
            }
            step<H, W>(sums, x, [&](int h) PYLLAMA_SPEC_INLINE { return last[h]; });
        }
        float all[(W * HEIGHT + 3) / 4 * 4];
        const auto sum = [&](int i) PYLLAMA_SPEC_INLINE { return sums[std::min(i / (int) HEIGHT, W - 1)][i % HEIGHT]; };
#if defined(__GNUC__)
#pragma GCC unroll 6  // indexed by constants, sums stay in registers
#endif
        for (int i = 0; i < W * HEIGHT; i += 4) {
            T::store_sums(all + i, sum(i), sum(i + 1), sum(i + 2), sum(i + 3));
        }
        for (int w = 0; w < W; ++w) {
            std::memcpy(op.out + (i1 + w) * op.out_stride + i0 * sizeof(float), all + w * HEIGHT, H * sizeof(float));
        }
    }
};

}  // namespace pyllama_spec
