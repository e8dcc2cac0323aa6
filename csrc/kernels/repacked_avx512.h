// Tiles of 16 interleaved weight rows with AVX-512 VNNI: a lane is a weight row. repacked.h describes the layouts. Every
// width adds a lane's products in the same order, block after block.
#pragma once

#include "repacked.h"
#include "unpack_avx512.h"

#if defined(PYLLAMA_SPEC_BLOCKS_AVX512)

namespace pyllama_spec::avx512 {

// Keeps weights in a register: otherwise GCC unpacks many ahead and has no registers left for wide tiles.
inline PYLLAMA_SPEC_INLINE void pin([[maybe_unused]] __m512i & x) {
#if defined(__GNUC__)
    __asm__("" : "+v"(x));
#endif
}

inline PYLLAMA_SPEC_INLINE __m512i four(const char * from) {
    return _mm512_set1_epi32(load<int>(from));
}

inline PYLLAMA_SPEC_INLINE __m512 one(const char * from) {
    return _mm512_set1_ps(load<float>(from));
}

inline PYLLAMA_SPEC_INLINE __m512 halves(const ggml_half * from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) from));
}

// The integer sums of R activation rows, each in two halves: one sum would wait for itself.
template <int R> struct Sums {
    __m512i half[2][R];

    inline PYLLAMA_SPEC_INLINE void begin(int r, __m512i start) {
        half[0][r] = start;
        half[1][r] = _mm512_setzero_si512();
    }

    // Adds the products of four numbers of each weight row; x: those of the first activation row.
    inline PYLLAMA_SPEC_INLINE void add(int i, __m512i w, const char * x, size_t stride) {
        pin(w);
        for (int r = 0; r < R; ++r) {
            half[i % 2][r] = _mm512_dpbusd_epi32(half[i % 2][r], w, four(x + r * stride));
        }
    }

    inline PYLLAMA_SPEC_INLINE __m512 of(int r) const {
        return _mm512_cvtepi32_ps(_mm512_add_epi32(half[0][r], half[1][r]));
    }
};

// ---- blocks of 32 numbers with activations of 32

template <class T> struct Of32 {
    static constexpr int    LENGTH = 32;
    static constexpr size_t N_X_BYTES = 40;

    template <int R, class Block> static inline PYLLAMA_SPEC_INLINE void add(const Block & b, const char * x, __m512 (&out)[R]) {
        Sums<R> sums;
        for (int r = 0; r < R; ++r) {
            sums.begin(r, four(x + 36 * R + 4 * r));
        }
        T::template products<R>(b, x, sums);
        const __m512 d = halves(b.d);
        for (int r = 0; r < R; ++r) {
            out[r] = _mm512_fmadd_ps(sums.of(r), _mm512_mul_ps(d, one(x + 32 * R + 4 * r)), out[r]);
        }
    }
};

struct Q8_0x16 : Of32<Q8_0x16> {
    using Block = block_q8_0x16;

    template <int R> static inline PYLLAMA_SPEC_INLINE void products(const Block & b, const char * x, Sums<R> & sums) {
#pragma GCC unroll 8
        for (int c = 0; c < 8; ++c) {
            sums.add(c, load_512(b.q[c]), x + 4 * c, 32);
        }
    }
};

struct Q4_0x16 : Of32<Q4_0x16> {
    using Block = block_q4_0x16;

    template <int R> static inline PYLLAMA_SPEC_INLINE void products(const Block & b, const char * x, Sums<R> & sums) {
#pragma GCC unroll 4
        for (int c = 0; c < 4; ++c) {
            const __m512i both = load_512(b.q[c]);
            sums.add(0, _mm512_and_si512(both, bytes(15)), x + 4 * c, 32);
            sums.add(1, _mm512_and_si512(_mm512_srli_epi16(both, 4), bytes(15)), x + 16 + 4 * c, 32);
        }
    }
};

// Nibbles with a fifth bit: nibbles & 15 | bit & 16.
template <int R>
inline PYLLAMA_SPEC_INLINE void five_bits(const uint8_t (&q)[4][64], const uint8_t (&high)[64], const char * x, Sums<R> & sums) {
    const __m512i all = load_512(high);
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
        const __m512i both = load_512(q[c]);
        const __m512i low = _mm512_and_si512(both, bytes(15)), up = _mm512_and_si512(_mm512_srli_epi16(both, 4), bytes(15));
        sums.add(0, _mm512_ternarylogic_epi64(low, _mm512_slli_epi16(all, 4 - c), bytes(16), 0xf8), x + 4 * c, 32);
        sums.add(1, _mm512_ternarylogic_epi64(up, c ? _mm512_srli_epi16(all, c) : all, bytes(16), 0xf8), x + 16 + 4 * c, 32);
    }
}

struct Q5_0x16 : Of32<Q5_0x16> {
    using Block = block_q5_0x16;

    template <int R> static inline PYLLAMA_SPEC_INLINE void products(const Block & b, const char * x, Sums<R> & sums) {
        five_bits<R>(b.q, b.high, x, sums);
    }
};

// ---- blocks of 256

// Q4_K and Q5_K: eight parts of 32 numbers, each with a scale and a minimum.
template <class T> struct WithMins {
    static constexpr int    LENGTH = 256;
    static constexpr size_t N_X_BYTES = 276;

    template <int R, class Block> static inline PYLLAMA_SPEC_INLINE void add(const Block & b, const char * x, __m512 (&out)[R]) {
        const __m512i all = load_512(b.scales.bits), low = load_512(b.scales.scales), least = load_512(b.scales.mins);
        const auto six = [&](__m512i nibbles, __m512i high) PYLLAMA_SPEC_INLINE {
            return _mm512_or_si512(_mm512_and_si512(nibbles, bytes(15)), _mm512_and_si512(high, bytes(48)));
        };
        const __m512i scales[2] = { six(low, _mm512_slli_epi16(all, 4)), six(_mm512_srli_epi16(low, 4), _mm512_slli_epi16(all, 2)) };
        const __m512i mins[2] = { six(least, all), six(_mm512_srli_epi16(least, 4), _mm512_srli_epi16(all, 2)) };
        const __m512 d = halves(b.d);
        __m512 whole[R];
        for (int r = 0; r < R; ++r) {
            whole[r] = _mm512_setzero_ps();
        }
        const auto part = [&](int s, __m128i scale) PYLLAMA_SPEC_INLINE {
            const __m512 by = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(scale)), d);
            Sums<R> sums;
            for (int r = 0; r < R; ++r) {
                sums.begin(r, _mm512_setzero_si512());
            }
            T::template products<R>(b, s, x + 32 * R * s, sums);
            for (int r = 0; r < R; ++r) {
                whole[r] = _mm512_fmadd_ps(sums.of(r), by, whole[r]);
            }
        };
        for (int i = 0; i < 2; ++i) {
            part(4 * i + 0, _mm512_castsi512_si128(scales[i]));
            part(4 * i + 1, _mm512_extracti32x4_epi32(scales[i], 1));
            part(4 * i + 2, _mm512_extracti32x4_epi32(scales[i], 2));
            part(4 * i + 3, _mm512_extracti32x4_epi32(scales[i], 3));
        }
        __m512i pairs[4];
        for (int i = 0; i < 2; ++i) {
            pairs[2 * i]     = _mm512_cvtepu8_epi16(_mm512_castsi512_si256(mins[i]));
            pairs[2 * i + 1] = _mm512_cvtepu8_epi16(_mm512_extracti64x4_epi64(mins[i], 1));
        }
        const __m512 dmin = halves(b.dmin);
        for (int r = 0; r < R; ++r) {
            __m512i m = _mm512_setzero_si512();
            for (int i = 0; i < 4; ++i) {
                m = _mm512_dpwssd_epi32(m, pairs[i], four(x + 256 * R + 4 * (i * R + r)));
            }
            whole[r] = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(m), dmin, whole[r]);
            out[r] = _mm512_fmadd_ps(whole[r], one(x + 272 * R + 4 * r), out[r]);
        }
    }
};

struct Q4_Kx16 : WithMins<Q4_Kx16> {
    using Block = block_q4_Kx16;

    template <int R> static inline PYLLAMA_SPEC_INLINE void products(const Block & b, int s, const char * x, Sums<R> & sums) {
#pragma GCC unroll 4
        for (int c = 0; c < 4; ++c) {
            const __m512i both = load_512(b.q[s][c]);
            sums.add(0, _mm512_and_si512(both, bytes(15)), x + 4 * c, 32);
            sums.add(1, _mm512_and_si512(_mm512_srli_epi16(both, 4), bytes(15)), x + 16 + 4 * c, 32);
        }
    }
};

struct Q5_Kx16 : WithMins<Q5_Kx16> {
    using Block = block_q5_Kx16;

    template <int R> static inline PYLLAMA_SPEC_INLINE void products(const Block & b, int s, const char * x, Sums<R> & sums) {
        five_bits<R>(b.part[s].q, b.part[s].high, x, sums);
    }
};

// 16 parts of 16 numbers, each with a scale.
struct Q6_Kx16 {
    using Block = block_q6_Kx16;
    static constexpr int    LENGTH = 256;
    static constexpr size_t N_X_BYTES = 324;

    template <int R> static inline PYLLAMA_SPEC_INLINE void add(const Block & b, const char * x, __m512 (&out)[R]) {
        const __m512 d = halves(b.d);
        __m512 whole[R];
        for (int r = 0; r < R; ++r) {
            whole[r] = _mm512_setzero_ps();
        }
        const auto part = [&](int s, const __m512i (&low)[4], int shift) PYLLAMA_SPEC_INLINE {
            const char * mine = x + 20 * R * s;
            const __m512 by = _mm512_mul_ps(
                _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *) b.scales[s]))), d);
            const __m512i all = load_512(b.pair[s / 2].high[s % 2]);
            const __m512i high[4] = { _mm512_slli_epi16(all, 4), _mm512_slli_epi16(all, 2), all, _mm512_srli_epi16(all, 2) };
            Sums<R> sums;
            for (int r = 0; r < R; ++r) {
                sums.begin(r, four(mine + 16 * R + 4 * r));
            }
            for (int c = 0; c < 4; ++c) {
                const __m512i nibbles = shift ? _mm512_srli_epi16(low[c], 4) : low[c];
                // nibbles & 15 | high & 48
                sums.add(c, _mm512_ternarylogic_epi64(_mm512_and_si512(nibbles, bytes(15)), high[c], bytes(48), 0xf8), mine + 4 * c, 16);
            }
            for (int r = 0; r < R; ++r) {
                whole[r] = _mm512_fmadd_ps(sums.of(r), by, whole[r]);
            }
        };
        for (int p = 0; p < 8; ++p) {
            const auto & q = b.pair[p].low;
            const __m512i low[4] = { load_512(q[0]), load_512(q[1]), load_512(q[2]), load_512(q[3]) };
            part(2 * p, low, 0);
            part(2 * p + 1, low, 4);
        }
        for (int r = 0; r < R; ++r) {
            out[r] = _mm512_fmadd_ps(whole[r], one(x + 320 * R + 4 * r), out[r]);
        }
    }
};

// The engine's quantize_row_q8_K, which is not vectorised, to the bit.
inline void quantize_q8_K(const float * from, void * to, int64_t n_k) {
    block_q8_K * out = (block_q8_K *) to;
    for (int64_t b = 0; b < n_k / QK_K; ++b, ++out, from += QK_K) {
        __m512 x[16], largest = _mm512_setzero_ps();
        for (int i = 0; i < 16; ++i) {
            x[i] = _mm512_loadu_ps(from + 16 * i);
            largest = _mm512_max_ps(largest, _mm512_abs_ps(x[i]));
        }
        const float most = _mm512_reduce_max_ps(largest);
        if (!(most > 0)) {
            *out = {};
            continue;
        }
        float signed_most = most;
        for (int i = 0; i < 16; ++i) {
            const __mmask16 is_most = _mm512_cmp_ps_mask(_mm512_abs_ps(x[i]), _mm512_set1_ps(most), _CMP_EQ_OQ);
            if (is_most) {
                signed_most = from[16 * i + __builtin_ctz(is_most)];
                break;
            }
        }
        const float scale = -127.0f / signed_most;
        for (int i = 0; i < 16; ++i) {
            const __m512i q = _mm512_min_epi32(
                _mm512_cvtps_epi32(_mm512_mul_ps(x[i], _mm512_set1_ps(scale))), _mm512_set1_epi32(127));
            _mm_storeu_si128((__m128i *) (out->qs + 16 * i), _mm512_cvtepi32_epi8(q));
            out->bsums[i] = (int16_t) _mm512_reduce_add_epi32(q);
        }
        out->d = 1 / scale;
    }
}

template <class T, int R> void tile_x16(const Panel & panel) {
    const typename T::Block * block = (const typename T::Block *) panel.weights;
    for (int64_t i = 0; i < panel.n_out; i += 16) {
        __m512 sums[R];
        for (int r = 0; r < R; ++r) {
            sums[r] = panel.is_first ? _mm512_setzero_ps() : _mm512_loadu_ps(panel.out[r] + i);
        }
        const char * x = panel.x;
        for (int64_t b = 0; b < panel.n_blocks; ++b, ++block, x += R * T::N_X_BYTES) {
            T::template add<R>(*block, x, sums);
        }
        for (int r = 0; r < R; ++r) {
            _mm512_storeu_ps(panel.out[r] + i, sums[r]);
        }
    }
}

}  // namespace pyllama_spec::avx512

#endif
