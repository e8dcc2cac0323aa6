// The same for types with 256 weights in a block; activations in Q8_K.
#pragma once

#include "unpack_avx512.h"

#if defined(PYLLAMA_SPEC_BLOCKS_AVX512)

namespace pyllama_spec::avx512 {

struct OfSuperBlocks : Lanes {
    static constexpr int  PER_GROUP = 1, CHAINS = 1, OFFSET = 0;
    static constexpr bool HAS_MINS = false;
    using Rows = block_q8_K;
};

// Nibbles of 128 bytes: in each 32 bytes, the low nibbles are a block, and the high ones the next. Reads eight bytes of
// every 32, each twice.
inline PYLLAMA_SPEC_INLINE void nibble_pairs(const uint8_t * qs, __m512i (&q)[4]) {
    const __m512i lower = load_once(qs), upper = load_once(qs + 64);
    const __m512i shift = each(0, 4, 0, 4, 0, 4, 0, 4);
    for (int c = 0; c < 4; ++c) {
        const __m512i both = _mm512_permutex2var_epi64(lower, each(c, c, 4 + c, 4 + c, 8 + c, 8 + c, 12 + c, 12 + c), upper);
        q[c] = _mm512_and_si512(_mm512_srlv_epi64(both, shift), bytes(15));
    }
}

template <class B> inline PYLLAMA_SPEC_INLINE void scales_and_mins(const B * b, Weights & w) {
    uint64_t scales, mins;
    scales_of(b->scales, scales, mins);
    w.d = _mm512_mul_ps(_mm512_cvtepi32_ps(twice(scales)), _mm512_set1_ps(half(b->data.data.d)));
    w.m = _mm512_mul_ps(_mm512_cvtepi32_ps(twice(mins)), _mm512_set1_ps(-half(b->data.data.dmin)));
}

struct Q4_K : OfSuperBlocks {
    using Block = block_q4_K;
    static constexpr bool HAS_MINS = true;

    static inline PYLLAMA_SPEC_INLINE void unpack(Blocks<Block> blocks, Weights & w) {
        const Block * b = blocks.first;
        nibble_pairs(b->qs, w.q);
        scales_and_mins(b, w);
    }
};

struct Q5_K : OfSuperBlocks {
    using Block = block_q5_K;
    static constexpr bool HAS_MINS = true;

    static inline PYLLAMA_SPEC_INLINE void unpack(Blocks<Block> blocks, Weights & w) {
        const Block * b = blocks.first;
        nibble_pairs(b->qs, w.q);
        // Bit i of a byte belongs to block i; moves it to bit 4.
        const __m512i turn = each(4, 3, 2, 1, 0, 63, 62, 61);
        for (int c = 0; c < 4; ++c) {
            const __m512i bits = _mm512_rolv_epi64(_mm512_set1_epi64(load<int64_t>(b->qh + 8 * c)), turn);
            w.q[c] = choose(bytes(16), bits, w.q[c]);
        }
        scales_and_mins(b, w);
    }
};

// ---- types with a scale for 16 weights

struct OfSixteens : OfSuperBlocks {
    static constexpr int LANE = 4;
};

// For each group of four lanes: lane i is element first + step * i of a vector of 32 bits.
inline PYLLAMA_SPEC_INLINE __m512i quads(int a, int b, int c, int d) {
    return _mm512_add_epi32(_mm512_setr_epi32(a, a, a, a, b, b, b, b, c, c, c, c, d, d, d, d),
        _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12));
}

// The same for pairs, each repeated four times: lanes 0 .. 7 and lanes 8 .. 15.
inline PYLLAMA_SPEC_INLINE __m512i pairs(int a, int b) {
    return _mm512_setr_epi32(a, a + 4, a, a + 4, a, a + 4, a, a + 4, b, b + 4, b, b + 4, b, b + 4, b, b + 4);
}

inline PYLLAMA_SPEC_INLINE __m512i each_pair(int a, int b, int c, int d, int e, int f, int g, int h) {
    return _mm512_setr_epi32(a, a, b, b, c, c, d, d, e, e, f, f, g, g, h, h);
}

inline PYLLAMA_SPEC_INLINE __m512 scaled(__m128i scales, float d) {
    return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(scales)), _mm512_set1_ps(d));
}

// 2-bit fields of 64 bytes, moved to bit `to` of each byte: in each 32 bytes, the lowest fields are a block, the next
// ones the next block.
inline PYLLAMA_SPEC_INLINE void bit_pairs(const uint8_t * from, int to, __m512i (&out)[4]) {
    const __m512i all  = load_once(from);
    const __m512i turn = _mm512_and_si512(
        _mm512_sub_epi32(each_pair(0, 2, 4, 6, 0, 2, 4, 6), _mm512_set1_epi32(to)), _mm512_set1_epi32(31));
    for (int c = 0; c < 4; ++c) {
        out[c] = _mm512_rorv_epi32(_mm512_permutexvar_epi32(pairs(c, 8 + c), all), turn);
    }
}

struct Q6_K : OfSixteens {
    using Block = block_q6_K;
    static constexpr int OFFSET = 32;

    static inline PYLLAMA_SPEC_INLINE void unpack(Blocks<Block> blocks, Weights & w) {
        const Block * b = blocks.first;
        // In each 64 bytes, the low nibbles are two blocks, and the high nibbles the next two.
        const __m512i lower = load_once(b->ql), upper = load_once(b->ql + 64);
        const __m512i shift = each_pair(0, 0, 4, 4, 0, 0, 4, 4);
        __m512i high[4];
        bit_pairs(b->qh, 4, high);
        for (int c = 0; c < 4; ++c) {
            const __m512i low = _mm512_permutex2var_epi32(lower, quads(c, c, 16 + c, 16 + c), upper);
            w.q[c] = choose(bytes(0x30), high[c], _mm512_and_si512(_mm512_srlv_epi32(low, shift), bytes(15)));
        }
        w.d = scaled(_mm_loadu_si128((const __m128i *) b->scales), half(b->d));
    }
};

struct Q3_K : OfSixteens {
    using Block = block_q3_K;
    static constexpr int OFFSET = 4;

    static inline PYLLAMA_SPEC_INLINE void unpack(Blocks<Block> blocks, Weights & w) {
        const Block * b = blocks.first;
        bit_pairs(b->qs, 0, w.q);
        // Bit i of a byte belongs to block i; moves it to bit 2.
        const __m512i mask = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *) b->hmask));
        const __m512i turn = each_pair(2, 1, 0, 31, 30, 29, 28, 27);
        for (int c = 0; c < 4; ++c) {
            const __m512i bits = _mm512_rolv_epi32(_mm512_permutexvar_epi32(pairs(c, c), mask), turn);
            w.q[c] = _mm512_and_si512(choose(bytes(4), bits, w.q[c]), bytes(7));
        }
        w.d = scaled(scales_of(*b), half(b->d));
    }
};

struct Q2_K : OfSixteens {
    using Block = block_q2_K;
    static constexpr bool HAS_MINS = true;

    static inline PYLLAMA_SPEC_INLINE void unpack(Blocks<Block> blocks, Weights & w) {
        const Block * b = blocks.first;
        bit_pairs(b->qs, 0, w.q);
        for (__m512i & x : w.q) {
            x = _mm512_and_si512(x, bytes(3));
        }
        const __m128i both = _mm_loadu_si128((const __m128i *) b->scales), low = _mm_set1_epi8(15);
        w.d = scaled(_mm_and_si128(both, low), half(b->data.data.d));
        w.m = scaled(_mm_and_si128(_mm_srli_epi16(both, 4), low), -half(b->data.data.dmin));
    }
};

struct Iq4Xs : OfSuperBlocks {
    using Block = block_iq4_xs;
    static constexpr int OFFSET = 128;

    static inline PYLLAMA_SPEC_INLINE void unpack(Blocks<Block> blocks, Weights & w) {
        const Block * b = blocks.first;
        const __m512i lower = load_once(b->qs), upper = load_once(b->qs + 64);
        for (int c = 0; c < 2; ++c) {
            const __m512i both = _mm512_permutex2var_epi64(
                lower, each(c, 2 + c, 4 + c, 6 + c, 8 + c, 10 + c, 12 + c, 14 + c), upper);
            w.q[c]     = _mm512_and_si512(both, bytes(15));
            w.q[2 + c] = _mm512_and_si512(_mm512_srli_epi16(both, 4), bytes(15));
        }
        look_up(table_iq4(), w.q);
        w.d = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(twice(scales_of(*b)), _mm512_set1_epi32(32))),
            _mm512_set1_ps(half(b->d)));
    }
};

}  // namespace pyllama_spec::avx512

#endif
