// The same for the types that have 256 weights in a block; activations in Q8_K.
#pragma once

#include "unpack_avx512.h"

#if defined(PYLLAMA_SPEC_BLOCKS_AVX512)

namespace pyllama_spec::avx512 {

struct OfSuperBlocks : Lanes {
    static constexpr int  PER_GROUP = 1, CHAINS = 1, OFFSET = 0;
    static constexpr bool HAS_MINS = false;
    using Rows = block_q8_K;
};

// Nibbles of 128 bytes: of each 32 bytes the low ones are a block, and the high ones the next. Eight bytes of every
// 32, each taken twice.
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
    w.d[0] = _mm512_mul_ps(_mm512_cvtepi32_ps(twice(scales)), _mm512_set1_ps(half(b->data.data.d)));
    w.m[0] = _mm512_mul_ps(_mm512_cvtepi32_ps(twice(mins)), _mm512_set1_ps(-half(b->data.data.dmin)));
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
        // Bit i of a byte belongs to block i; it goes to bit 4.
        const __m512i turn = each(4, 3, 2, 1, 0, 63, 62, 61);
        for (int c = 0; c < 4; ++c) {
            const __m512i bits = _mm512_rolv_epi64(_mm512_set1_epi64(load<int64_t>(b->qh + 8 * c)), turn);
            w.q[c] = choose(bytes(16), bits, w.q[c]);
        }
        scales_and_mins(b, w);
    }
};

// 16 scales of 16 weights each: those of the first halves of the blocks, and of the second ones.
inline PYLLAMA_SPEC_INLINE void by_halves(__m128i scales, float d, __m512 (&out)[2]) {
    const __m128i evens = _mm_shuffle_epi8(scales, _mm_setr_epi8(0, 0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10, 12, 12, 14, 14));
    const __m128i odds  = _mm_shuffle_epi8(scales, _mm_setr_epi8(1, 1, 3, 3, 5, 5, 7, 7, 9, 9, 11, 11, 13, 13, 15, 15));
    const __m512  all   = _mm512_set1_ps(d);
    out[0] = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(evens)), all);
    out[1] = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(odds)), all);
}

// Pairs of bits of 64 bytes, at bit `to` of each byte: of each 32 bytes the lowest bits are a block, the next ones the
// next.
inline PYLLAMA_SPEC_INLINE void bit_pairs(const uint8_t * from, int to, __m512i (&out)[4]) {
    const __m512i all  = load_once(from);
    const __m512i turn = _mm512_and_si512(
        _mm512_sub_epi64(each(0, 2, 4, 6, 0, 2, 4, 6), _mm512_set1_epi64(to)), _mm512_set1_epi64(63));
    for (int c = 0; c < 4; ++c) {
        out[c] = _mm512_rorv_epi64(_mm512_permutexvar_epi64(each(c, c, c, c, 4 + c, 4 + c, 4 + c, 4 + c), all), turn);
    }
}

struct Q6_K : OfSuperBlocks {
    using Block = block_q6_K;
    static constexpr int CHAINS = 2, OFFSET = 32;

    static inline PYLLAMA_SPEC_INLINE void unpack(Blocks<Block> blocks, Weights & w) {
        const Block * b = blocks.first;
        // Of each 64 bytes the low nibbles are two blocks, and the high ones the next two.
        const __m512i lower = load_once(b->ql), upper = load_once(b->ql + 64);
        const __m512i shift = each(0, 0, 4, 4, 0, 0, 4, 4);
        __m512i high[4];
        bit_pairs(b->qh, 4, high);
        for (int c = 0; c < 4; ++c) {
            const __m512i low = _mm512_permutex2var_epi64(lower, each(c, 4 + c, c, 4 + c, 8 + c, 12 + c, 8 + c, 12 + c), upper);
            w.q[c] = choose(bytes(0x30), high[c], _mm512_and_si512(_mm512_srlv_epi64(low, shift), bytes(15)));
        }
        by_halves(_mm_loadu_si128((const __m128i *) b->scales), half(b->d), w.d);
    }
};

struct Q3_K : OfSuperBlocks {
    using Block = block_q3_K;
    static constexpr int CHAINS = 2, OFFSET = 4;

    static inline PYLLAMA_SPEC_INLINE void unpack(Blocks<Block> blocks, Weights & w) {
        const Block * b = blocks.first;
        bit_pairs(b->qs, 0, w.q);
        // Bit i of a byte belongs to block i; it goes to bit 2.
        const __m512i turn = each(2, 1, 0, 63, 62, 61, 60, 59);
        for (int c = 0; c < 4; ++c) {
            const __m512i bits = _mm512_rolv_epi64(_mm512_set1_epi64(load<int64_t>(b->hmask + 8 * c)), turn);
            w.q[c] = _mm512_and_si512(choose(bytes(4), bits, w.q[c]), bytes(7));
        }
        by_halves(scales_of(*b), half(b->d), w.d);
    }
};

struct Q2_K : OfSuperBlocks {
    using Block = block_q2_K;
    static constexpr int CHAINS = 2;
    static constexpr bool HAS_MINS = true;

    static inline PYLLAMA_SPEC_INLINE void unpack(Blocks<Block> blocks, Weights & w) {
        const Block * b = blocks.first;
        bit_pairs(b->qs, 0, w.q);
        for (__m512i & x : w.q) {
            x = _mm512_and_si512(x, bytes(3));
        }
        const __m128i both = _mm_loadu_si128((const __m128i *) b->scales), low = _mm_set1_epi8(15);
        by_halves(_mm_and_si128(both, low), half(b->data.data.d), w.d);
        by_halves(_mm_and_si128(_mm_srli_epi16(both, 4), low), -half(b->data.data.dmin), w.m);
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
        w.d[0] = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(twice(scales_of(*b)), _mm512_set1_epi32(32))),
            _mm512_set1_ps(half(b->d)));
    }
};

}  // namespace pyllama_spec::avx512

#endif
