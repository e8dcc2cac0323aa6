// The same for types with 256 weights in a block; activations in Q8_K. h: which half of the block.
#pragma once

#include "unpack_avx2.h"

#if defined(PYLLAMA_SPEC_BLOCKS_AVX2)

namespace pyllama_spec::avx2 {

struct OfSuperBlocks : Lanes {
    static constexpr int  PER_GROUP = 1, CHAINS = 1, OFFSET = 0;
    static constexpr bool HAS_MINS = false, IS_SIGNED = false;
    using Rows = block_q8_K;
};

inline __m256i shifted(__m256i x, int64_t a, int64_t b, int64_t c, int64_t d) {
    return _mm256_srlv_epi64(x, _mm256_setr_epi64x(a, b, c, d));
}

inline __m256i four_times(const uint8_t * eight) {
    return _mm256_set1_epi64x(load<int64_t>(eight));
}

// [a a b b]
inline __m256i twice_each(const uint8_t * a, const uint8_t * b) {
    return _mm256_set_m128i(_mm_set1_epi64x(load<int64_t>(b)), _mm_set1_epi64x(load<int64_t>(a)));
}

// Nibbles of 64 bytes: in each 32 bytes, the low nibbles are a block, and the high ones the next.
inline PYLLAMA_SPEC_INLINE void nibble_pairs(const uint8_t * qs, __m256i (&q)[4]) {
    for (int c = 0; c < 4; ++c) {
        q[c] = low_nibbles(shifted(twice_each(qs + 8 * c, qs + 32 + 8 * c), 0, 4, 0, 4));
    }
}

template <class B> inline PYLLAMA_SPEC_INLINE void scales_and_mins(const B * b, int h, Weights & w) {
    uint64_t scales, mins;
    scales_of(b->scales, scales, mins);
    w.d[0] = _mm256_mul_ps(_mm256_cvtepi32_ps(twice((uint32_t) (scales >> (32 * h)))), _mm256_set1_ps(half(b->data.data.d)));
    w.m[0] = _mm256_mul_ps(_mm256_cvtepi32_ps(twice((uint32_t) (mins >> (32 * h)))), _mm256_set1_ps(-half(b->data.data.dmin)));
}

struct Q4_K : OfSuperBlocks {
    using Block = block_q4_K;
    static constexpr bool HAS_MINS = true;

    static inline PYLLAMA_SPEC_INLINE void unpack(Blocks<Block> blocks, int h, Weights & w) {
        const Block * b = blocks.first;
        nibble_pairs(b->qs + 64 * h, w.q);
        scales_and_mins(b, h, w);
    }
};

struct Q5_K : OfSuperBlocks {
    using Block = block_q5_K;
    static constexpr bool HAS_MINS = true;

    static inline PYLLAMA_SPEC_INLINE void unpack(Blocks<Block> blocks, int h, Weights & w) {
        const Block * b = blocks.first;
        nibble_pairs(b->qs + 64 * h, w.q);
        const int64_t i = 4 * h;  // bit i of a byte belongs to block i
        for (int c = 0; c < 4; ++c) {
            const __m256i bits = _mm256_and_si256(shifted(four_times(b->qh + 8 * c), i, i + 1, i + 2, i + 3), bytes(1));
            w.q[c] = _mm256_or_si256(w.q[c], _mm256_slli_epi16(bits, 4));
        }
        scales_and_mins(b, h, w);
    }
};

// Eight of 16 scales, each for 16 weights: those of the first halves of four blocks, then of the second halves.
inline PYLLAMA_SPEC_INLINE void by_halves(__m128i scales, int h, float d, __m256 (&out)[2]) {
    const __m128i mine  = h == 0 ? scales : _mm_unpackhi_epi64(scales, scales);
    const __m128i evens = _mm_shuffle_epi8(mine, _mm_setr_epi8(0, 0, 2, 2, 4, 4, 6, 6, 0, 0, 0, 0, 0, 0, 0, 0));
    const __m128i odds  = _mm_shuffle_epi8(mine, _mm_setr_epi8(1, 1, 3, 3, 5, 5, 7, 7, 0, 0, 0, 0, 0, 0, 0, 0));
    out[0] = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(evens)), _mm256_set1_ps(d));
    out[1] = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(odds)), _mm256_set1_ps(d));
}

// 2-bit fields of 32 bytes: the lowest fields are a block, the next ones the next block.
inline PYLLAMA_SPEC_INLINE __m256i bit_pairs(const uint8_t * eight) {
    return _mm256_and_si256(shifted(four_times(eight), 0, 2, 4, 6), bytes(3));
}

struct Q6_K : OfSuperBlocks {
    using Block = block_q6_K;
    static constexpr int CHAINS = 2, OFFSET = 32;

    static inline PYLLAMA_SPEC_INLINE void unpack(Blocks<Block> blocks, int h, Weights & w) {
        const Block * b = blocks.first;
        for (int c = 0; c < 4; ++c) {
            // The low nibbles of 64 bytes are two blocks, and the high nibbles the next two.
            const uint8_t * ql  = b->ql + 64 * h + 8 * c;
            const __m256i   all = _mm256_broadcastsi128_si256(_mm_set_epi64x(load<int64_t>(ql + 32), load<int64_t>(ql)));
            const __m256i   high = _mm256_slli_epi16(bit_pairs(b->qh + 32 * h + 8 * c), 4);
            w.q[c] = _mm256_or_si256(low_nibbles(shifted(all, 0, 0, 4, 4)), high);
        }
        by_halves(_mm_loadu_si128((const __m128i *) b->scales), h, half(b->d), w.d);
    }
};

struct Q3_K : OfSuperBlocks {
    using Block = block_q3_K;
    static constexpr int CHAINS = 2, OFFSET = 4;

    static inline PYLLAMA_SPEC_INLINE void unpack(Blocks<Block> blocks, int h, Weights & w) {
        const Block * b = blocks.first;
        const int64_t i = 4 * h;  // bit i of a byte belongs to block i
        for (int c = 0; c < 4; ++c) {
            const __m256i bits = _mm256_and_si256(shifted(four_times(b->hmask + 8 * c), i, i + 1, i + 2, i + 3), bytes(1));
            w.q[c] = _mm256_or_si256(bit_pairs(b->qs + 32 * h + 8 * c), _mm256_slli_epi16(bits, 2));
        }
        by_halves(scales_of(*b), h, half(b->d), w.d);
    }
};

struct Q2_K : OfSuperBlocks {
    using Block = block_q2_K;
    static constexpr int CHAINS = 2;
    static constexpr bool HAS_MINS = true;

    static inline PYLLAMA_SPEC_INLINE void unpack(Blocks<Block> blocks, int h, Weights & w) {
        const Block * b = blocks.first;
        for (int c = 0; c < 4; ++c) {
            w.q[c] = bit_pairs(b->qs + 32 * h + 8 * c);
        }
        const __m128i both = _mm_loadu_si128((const __m128i *) b->scales), low = _mm_set1_epi8(15);
        by_halves(_mm_and_si128(both, low), h, half(b->data.data.d), w.d);
        by_halves(_mm_and_si128(_mm_srli_epi16(both, 4), low), h, -half(b->data.data.dmin), w.m);
    }
};

struct Iq4Xs : OfSuperBlocks {
    using Block = block_iq4_xs;
    static constexpr bool IS_SIGNED = true;

    static inline PYLLAMA_SPEC_INLINE void unpack(Blocks<Block> blocks, int h, Weights & w) {
        const Block * b = blocks.first;
        const __m256i first = load_256(b->qs + 64 * h), second = load_256(b->qs + 64 * h + 32);
        // Each 16 bytes are a block; reorders them to the order of blocks.
        const __m256i even = _mm256_permute4x64_epi64(_mm256_unpacklo_epi64(first, second), 0xd8);
        const __m256i odd  = _mm256_permute4x64_epi64(_mm256_unpackhi_epi64(first, second), 0xd8);
        w.q[0] = low_nibbles(even);
        w.q[1] = low_nibbles(odd);
        w.q[2] = high_nibbles(even);
        w.q[3] = high_nibbles(odd);
        look_up(table_iq4(), w.q);
        const __m256i scales = _mm256_sub_epi32(twice((uint32_t) (scales_of(*b) >> (32 * h))), _mm256_set1_epi32(32));
        w.d[0] = _mm256_mul_ps(_mm256_cvtepi32_ps(scales), _mm256_set1_ps(half(b->d)));
    }
};

}  // namespace pyllama_spec::avx2

#endif
