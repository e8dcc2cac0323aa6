// Unpacks half a group of weights, four blocks of 32, to vectors of bytes with AVX2: blocks.h describes their order.
//
// VPMADDUBSW multiplies unsigned bytes (weights) by signed ones and adds pairs in 16 bits. Small weights allow summing
// a whole chain of vectors in 16 bits. 8-bit weights stay signed: their signs move to the activations, and each vector
// is summed in 32 bits, since 2 * 128 * 127 fits in 16.
#pragma once

#include "fill.h"

#if defined(PYLLAMA_SPEC_BLOCKS_AVX2)

namespace pyllama_spec::avx2 {

// The weights of half a group.
struct Weights {
    __m256i q[4];
    __m256  d[2], m[2];
};

inline __m256i load_256(const void * from) {
    return _mm256_loadu_si256((const __m256i *) from);
}

inline __m256i bytes(int x) {
    return _mm256_set1_epi8((char) x);
}

// Adds pairs of 16-bit lanes.
inline __m256i add_pairs(__m256i x) {
    return _mm256_madd_epi16(x, _mm256_set1_epi16(1));
}

struct Lanes {
    static void add_up(const Group & x, int c, int n, int factor, int32_t * out) {
        for (int h = 0; h < 2; ++h) {
            __m256i s = _mm256_setzero_si256();
            for (int i = c; i < c + n; ++i) {
                s = _mm256_add_epi32(s, add_pairs(_mm256_maddubs_epi16(bytes(factor), load_256(x.q[i] + 32 * h))));
            }
            _mm256_store_si256((__m256i *) (out + 8 * h), s);
        }
    }
};

// Expands four bytes to eight lanes, each twice.
inline PYLLAMA_SPEC_INLINE __m256i twice(uint32_t four) {
    const __m128i x = _mm_cvtsi32_si128((int) four);
    return _mm256_cvtepu8_epi32(_mm_unpacklo_epi8(x, x));
}

// Expands four halves to eight floats, each twice.
inline PYLLAMA_SPEC_INLINE __m256 twice(__m128i halves) {
    return _mm256_cvtph_ps(_mm_unpacklo_epi16(halves, halves));
}

// The first eight bytes of four blocks. Every block has at least that many.
template <class At> inline PYLLAMA_SPEC_INLINE __m256i heads(At b) {
    // Not loaded as four integers: the compiler would store these to memory, and loading them again has to wait.
    const auto both = [&](int i) PYLLAMA_SPEC_INLINE {
        const __m128i first = _mm_loadl_epi64((const __m128i *) b[i]);   // _mm_load_sd needs an address aligned to eight
        return _mm_castpd_si128(_mm_loadh_pd(_mm_castsi128_pd(first), (const double *) b[i + 1]));
    };
    return _mm256_set_m128i(both(2), both(0));
}

// The 16-bit fields of four heads in lane order, each twice: all first fields, then all second ones.
inline PYLLAMA_SPEC_INLINE __m256i fields_of(__m256i heads) {
    return _mm256_permute4x64_epi64(_mm256_shuffle_epi8(heads, _mm256_setr_epi8(
        0, 1, 0, 1, 8, 9, 8, 9, 2, 3, 2, 3, 10, 11, 10, 11, 0, 1, 0, 1, 8, 9, 8, 9, 2, 3, 2, 3, 10, 11, 10, 11)), 0xd8);
}

inline PYLLAMA_SPEC_INLINE __m256 first_field(__m256i fields) {
    return _mm256_cvtph_ps(_mm256_castsi256_si128(fields));
}

inline PYLLAMA_SPEC_INLINE void scales_and_mins_of(__m256i heads, Weights & w) {
    const __m256i fields = fields_of(heads);
    w.d[0] = first_field(fields);
    w.m[0] = _mm256_cvtph_ps(_mm256_extracti128_si256(fields, 1));
}

// 16 bytes of four blocks: the first halves of all, then the second halves.
template <class At> inline PYLLAMA_SPEC_INLINE void halves_of(At b, size_t at, __m256i & first, __m256i & second) {
    const auto part = [&](int i) { return _mm_loadu_si128((const __m128i *) ((const char *) b[i] + at)); };
    const __m256i evens = _mm256_set_m128i(part(2), part(0)), odds = _mm256_set_m128i(part(3), part(1));
    first  = _mm256_unpacklo_epi64(evens, odds);
    second = _mm256_unpackhi_epi64(evens, odds);
}

inline __m256i low_nibbles(__m256i x) {
    return _mm256_and_si256(x, bytes(15));
}

inline __m256i high_nibbles(__m256i x) {
    return low_nibbles(_mm256_srli_epi16(x, 4));
}

template <class At> inline PYLLAMA_SPEC_INLINE void nibbles_of(At b, size_t at, __m256i (&q)[4]) {
    __m256i first, second;
    halves_of(b, at, first, second);
    q[0] = low_nibbles(first);
    q[1] = low_nibbles(second);
    q[2] = high_nibbles(first);
    q[3] = high_nibbles(second);
}

inline PYLLAMA_SPEC_INLINE void look_up(__m128i table, __m256i (&q)[4]) {
    const __m256i values = _mm256_broadcastsi128_si256(table);
    for (__m256i & x : q) {
        x = _mm256_shuffle_epi8(values, x);
    }
}

// The values of IQ4_NL and IQ4_XS, and those of MXFP4 plus 12.
inline __m128i table_iq4() {
    return _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);
}

inline __m128i table_mxfp4() {
    return _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
}

inline PYLLAMA_SPEC_INLINE __m256 power_of_two(uint32_t four) {
    const __m256i e     = twice(four);
    const __m256i large = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    const __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(large, small, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e)));
}

// ---- blocks of 32. b: four blocks; h: which half of a group they are.

struct OfBlocks : Lanes {
    static constexpr int  PER_GROUP = 8, CHAINS = 1, OFFSET = 0;
    static constexpr bool HAS_MINS = false, IS_SIGNED = false;
    using Rows = block_q8_0;
};

struct Q4_0 : OfBlocks {
    using Block = block_q4_0;
    static constexpr int OFFSET = 8;

    template <class At> static inline PYLLAMA_SPEC_INLINE void unpack(At b, int, Weights & w) {
        nibbles_of(b, offsetof(Block, qs), w.q);
        w.d[0] = first_field(fields_of(heads(b)));
    }
};

struct Q4_1 : OfBlocks {
    using Block = block_q4_1;
    using Rows  = block_q8_1;
    static constexpr bool HAS_MINS = true;

    template <class At> static inline PYLLAMA_SPEC_INLINE void unpack(At b, int, Weights & w) {
        nibbles_of(b, offsetof(Block, qs), w.q);
        scales_and_mins_of(heads(b), w);
    }
};

// The fifth bits, from byte `at` of the heads on: bit 8c + i of a block's 32 belongs to number 8c + i.
inline PYLLAMA_SPEC_INLINE void fifth_bits(__m256i heads, int at, __m256i (&q)[4]) {
    const __m256i which = _mm256_set1_epi64x((int64_t) 0x8040201008040201);
    for (int c = 0; c < 4; ++c) {
        const int64_t all = 0x0101010101010101 * (at + c), second = all + 0x0808080808080808;
        const __m256i spread = _mm256_shuffle_epi8(heads, _mm256_setr_epi64x(all, second, all, second));
        const __m256i is_set = _mm256_cmpeq_epi8(_mm256_and_si256(spread, which), which);
        q[c] = _mm256_or_si256(q[c], _mm256_and_si256(is_set, bytes(16)));
    }
}

struct Q5_0 : OfBlocks {
    using Block = block_q5_0;
    static constexpr int OFFSET = 16;

    template <class At> static inline PYLLAMA_SPEC_INLINE void unpack(At b, int, Weights & w) {
        nibbles_of(b, offsetof(Block, qs), w.q);
        const __m256i first = heads(b);
        fifth_bits(first, offsetof(Block, qh), w.q);
        w.d[0] = first_field(fields_of(first));
    }
};

struct Q5_1 : OfBlocks {
    using Block = block_q5_1;
    using Rows  = block_q8_1;
    static constexpr bool HAS_MINS = true;

    template <class At> static inline PYLLAMA_SPEC_INLINE void unpack(At b, int, Weights & w) {
        nibbles_of(b, offsetof(Block, qs), w.q);
        const __m256i first = heads(b);
        fifth_bits(first, offsetof(Block, qh), w.q);
        scales_and_mins_of(first, w);
    }
};

struct Q8_0 : OfBlocks {
    using Block = block_q8_0;
    static constexpr bool IS_SIGNED = true;

    template <class At> static inline PYLLAMA_SPEC_INLINE void unpack(At b, int, Weights & w) {
        halves_of(b, offsetof(Block, qs), w.q[0], w.q[1]);
        halves_of(b, offsetof(Block, qs) + 16, w.q[2], w.q[3]);
        w.d[0] = first_field(fields_of(heads(b)));
    }
};

struct Iq4Nl : OfBlocks {
    using Block = block_iq4_nl;
    static constexpr bool IS_SIGNED = true;

    template <class At> static inline PYLLAMA_SPEC_INLINE void unpack(At b, int, Weights & w) {
        nibbles_of(b, offsetof(Block, qs), w.q);
        look_up(table_iq4(), w.q);
        w.d[0] = first_field(fields_of(heads(b)));
    }
};

struct Mxfp4 : OfBlocks {
    using Block = block_mxfp4;
    static constexpr int OFFSET = 12;

    template <class At> static inline PYLLAMA_SPEC_INLINE void unpack(At b, int, Weights & w) {
        nibbles_of(b, offsetof(Block, qs), w.q);
        look_up(table_mxfp4(), w.q);
        w.d[0] = power_of_two(b[0]->e | (uint32_t) b[1]->e << 8 | (uint32_t) b[2]->e << 16 | (uint32_t) b[3]->e << 24);
    }
};

}  // namespace pyllama_spec::avx2

#endif
