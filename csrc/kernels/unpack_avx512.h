// Unpacks groups of 256 weights to vectors of bytes with AVX-512: blocks.h describes their order.
#pragma once

#include "fill.h"

#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__F16C__) && defined(__BMI2__)

#define PYLLAMA_SPEC_BLOCKS_AVX512

namespace pyllama_spec::avx512 {

// The weights of a group.
struct Weights {
    __m512i q[4];
    __m512  d;  // scales, by lane
    __m512  m;  // minima, by lane, if the type has them
};

inline __m512i load_512(const void * from) {
    return _mm512_loadu_si512(from);
}

// The same for a vector with several uses: the compiler would load it for each use, and a load across two cache lines
// counts twice.
inline PYLLAMA_SPEC_INLINE __m512i load_once(const void * from) {
    __m512i x = load_512(from);
#if defined(__GNUC__)
    __asm__("" : "+v"(x));
#endif
    return x;
}

inline __m512i bytes(int x) {
    return _mm512_set1_epi8((char) x);
}

// For fill().
struct Lanes {
    static constexpr int LANE = 8;  // consecutive numbers of a block: blocks.h

    // Sums vectors c .. c + n - 1 of a group, times a factor of 0 .. 128.
    static void add_up(const Group & x, int c, int n, int factor, int32_t * out) {
        __m512i s = _mm512_setzero_si512();
        for (int i = c; i < c + n; ++i) {
            s = _mm512_dpbusd_epi32(s, bytes(factor), _mm512_load_si512(x.q[i]));
        }
        _mm512_store_si512(out, s);
    }
};

// a where the mask has ones, otherwise b.
inline __m512i choose(__m512i mask, __m512i a, __m512i b) {
    return _mm512_ternarylogic_epi64(mask, a, b, 0xca);
}

inline __m512i each(int64_t a, int64_t b, int64_t c, int64_t d, int64_t e, int64_t f, int64_t g, int64_t h) {
    return _mm512_setr_epi64(a, b, c, d, e, f, g, h);
}

// Expands eight bytes to 16 lanes, each twice.
inline PYLLAMA_SPEC_INLINE __m512i twice(uint64_t eight) {
    const __m128i x = _mm_cvtsi64_si128((long long) eight);
    return _mm512_cvtepu8_epi32(_mm_unpacklo_epi8(x, x));
}

// Expands eight halves to 16 floats, each twice.
inline PYLLAMA_SPEC_INLINE __m512 twice(__m128i halves) {
    return _mm512_cvtph_ps(_mm256_set_m128i(_mm_unpackhi_epi16(halves, halves), _mm_unpacklo_epi16(halves, halves)));
}

// The first eight bytes of eight blocks. Every block has at least that many.
template <class At> inline PYLLAMA_SPEC_INLINE __m512i heads(At b) {
    // Not loaded as eight integers: the compiler would store these to memory, and loading them again has to wait.
    const auto both = [&](int i) PYLLAMA_SPEC_INLINE {
        const __m128i first = _mm_loadl_epi64((const __m128i *) b[i]);   // _mm_load_sd needs an address aligned to eight
        return _mm_castpd_si128(_mm_loadh_pd(_mm_castsi128_pd(first), (const double *) b[i + 1]));
    };
    const __m256i low = _mm256_set_m128i(both(2), both(0)), high = _mm256_set_m128i(both(6), both(4));
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

// The 16-bit fields of eight heads in lane order, each twice: all first fields, then all second ones.
inline PYLLAMA_SPEC_INLINE __m512i fields_of(__m512i heads) {
    return _mm512_permutexvar_epi16(_mm512_set_epi16(
        29, 29, 25, 25, 21, 21, 17, 17, 13, 13, 9, 9, 5, 5, 1, 1,
        28, 28, 24, 24, 20, 20, 16, 16, 12, 12, 8, 8, 4, 4, 0, 0), heads);
}

inline PYLLAMA_SPEC_INLINE __m512 first_field(__m512i fields) {
    return _mm512_cvtph_ps(_mm512_castsi512_si256(fields));
}

inline PYLLAMA_SPEC_INLINE __m512 second_field(__m512i fields) {
    return _mm512_cvtph_ps(_mm512_extracti64x4_epi64(fields, 1));
}

inline PYLLAMA_SPEC_INLINE void scales_and_mins_of(__m512i heads, Weights & w) {
    const __m512i fields = fields_of(heads);
    w.d = first_field(fields);
    w.m = second_field(fields);
}

// 16 bytes of eight blocks, from byte `at` on: the first halves of all, then the second halves.
template <class At> inline PYLLAMA_SPEC_INLINE void halves_of(At b, size_t at, __m512i & first, __m512i & second) {
    const auto part = [&](int i) { return _mm_loadu_si128((const __m128i *) ((const char *) b[i] + at)); };
    __m512i evens = _mm512_castsi128_si512(part(0)), odds = _mm512_castsi128_si512(part(1));
    evens  = _mm512_inserti32x4(evens, part(2), 1);
    odds   = _mm512_inserti32x4(odds, part(3), 1);
    evens  = _mm512_inserti32x4(evens, part(4), 2);
    odds   = _mm512_inserti32x4(odds, part(5), 2);
    evens  = _mm512_inserti32x4(evens, part(6), 3);
    odds   = _mm512_inserti32x4(odds, part(7), 3);
    first  = _mm512_unpacklo_epi64(evens, odds);
    second = _mm512_unpackhi_epi64(evens, odds);
}

// Nibbles of eight blocks of 16 bytes: the low ones are numbers 0 .. 15, the high ones 16 .. 31.
template <class At> inline PYLLAMA_SPEC_INLINE void nibbles_of(At b, size_t at, __m512i (&q)[4]) {
    __m512i first, second;
    halves_of(b, at, first, second);
    q[0] = _mm512_and_si512(first, bytes(15));
    q[1] = _mm512_and_si512(second, bytes(15));
    q[2] = _mm512_and_si512(_mm512_srli_epi16(first, 4), bytes(15));
    q[3] = _mm512_and_si512(_mm512_srli_epi16(second, 4), bytes(15));
}

inline PYLLAMA_SPEC_INLINE void look_up(__m128i table, __m512i (&q)[4]) {
    const __m512i values = _mm512_broadcast_i32x4(table);
    for (__m512i & x : q) {
        x = _mm512_shuffle_epi8(values, x);
    }
}

// The values of IQ4_NL and IQ4_XS plus 128, of MXFP4 plus 12.
inline __m128i table_iq4() {
    return _mm_setr_epi8(1, 24, 45, 63, 79, 93, 106, 118, (char) 129, (char) 141, (char) 153, (char) 166, (char) 181,
        (char) 197, (char) 217, (char) 241);
}

inline __m128i table_mxfp4() {
    return _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
}

// Half of the power of two that an MXFP4 exponent stands for, twice each: the values are doubled.
inline PYLLAMA_SPEC_INLINE __m512 power_of_two(uint64_t eight) {
    const __m512i e     = twice(eight);
    const __m512i large = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
    const __m512i small = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
    return _mm512_castsi512_ps(
        _mm512_mask_blend_epi32(_mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2)), large, small));
}

// ---- blocks of 32, eight of them a group; activations in Q8_0 or Q8_1

struct OfBlocks : Lanes {
    static constexpr int  PER_GROUP = 8, CHAINS = 1, OFFSET = 0;
    static constexpr bool HAS_MINS = false;
    using Rows = block_q8_0;
};

struct Q4_0 : OfBlocks {
    using Block = block_q4_0;
    static constexpr int OFFSET = 8;

    template <class At> static inline PYLLAMA_SPEC_INLINE void unpack(At b, Weights & w) {
        nibbles_of(b, offsetof(Block, qs), w.q);
        w.d = first_field(fields_of(heads(b)));
    }
};

struct Q4_1 : OfBlocks {
    using Block = block_q4_1;
    using Rows  = block_q8_1;
    static constexpr bool HAS_MINS = true;

    template <class At> static inline PYLLAMA_SPEC_INLINE void unpack(At b, Weights & w) {
        nibbles_of(b, offsetof(Block, qs), w.q);
        scales_and_mins_of(heads(b), w);
    }
};

// The fifth bits of eight blocks, from byte `at` of their heads on: bit 8c + i of a block's 32 belongs to number 8c +
// i.
inline PYLLAMA_SPEC_INLINE void fifth_bits(__m512i heads, int at, __m512i (&q)[4]) {
    const __m512i which = _mm512_set1_epi64((int64_t) 0x8040201008040201);
    for (int c = 0; c < 4; ++c) {
        const int64_t all = 0x0101010101010101 * (at + c), second = all + 0x0808080808080808;
        const __m512i spread = _mm512_shuffle_epi8(heads, each(all, second, all, second, all, second, all, second));
        q[c] = _mm512_mask_add_epi8(q[c], _mm512_test_epi8_mask(spread, which), q[c], bytes(16));
    }
}

struct Q5_0 : OfBlocks {
    using Block = block_q5_0;
    static constexpr int OFFSET = 16;

    template <class At> static inline PYLLAMA_SPEC_INLINE void unpack(At b, Weights & w) {
        nibbles_of(b, offsetof(Block, qs), w.q);
        const __m512i first = heads(b);
        fifth_bits(first, offsetof(Block, qh), w.q);
        w.d = first_field(fields_of(first));
    }
};

struct Q5_1 : OfBlocks {
    using Block = block_q5_1;
    using Rows  = block_q8_1;
    static constexpr bool HAS_MINS = true;

    template <class At> static inline PYLLAMA_SPEC_INLINE void unpack(At b, Weights & w) {
        nibbles_of(b, offsetof(Block, qs), w.q);
        const __m512i first = heads(b);
        fifth_bits(first, offsetof(Block, qh), w.q);
        scales_and_mins_of(first, w);
    }
};

// 32 bytes of eight blocks: the first quarters of all, then the second ones, and so on.
template <class At> inline PYLLAMA_SPEC_INLINE void quarters_of(At b, __m512i (&q)[4]) {
    const auto part = [&](int i) { return _mm256_loadu_si256((const __m256i *) b[i]->qs); };
    const auto both = [&](int i) PYLLAMA_SPEC_INLINE {
        return _mm512_inserti64x4(_mm512_castsi256_si512(part(i)), part(i + 2), 1);
    };
    const __m512i b02 = both(0), b13 = both(1), b46 = both(4), b57 = both(5);
    const __m512i low_even  = _mm512_unpacklo_epi64(b02, b13), low_odd  = _mm512_unpackhi_epi64(b02, b13);
    const __m512i high_even = _mm512_unpacklo_epi64(b46, b57), high_odd = _mm512_unpackhi_epi64(b46, b57);
    q[0] = _mm512_shuffle_i64x2(low_even, high_even, 0x88);
    q[1] = _mm512_shuffle_i64x2(low_odd, high_odd, 0x88);
    q[2] = _mm512_shuffle_i64x2(low_even, high_even, 0xdd);
    q[3] = _mm512_shuffle_i64x2(low_odd, high_odd, 0xdd);
}

struct Q8_0 : OfBlocks {
    using Block = block_q8_0;
    static constexpr int OFFSET = 128;

    template <class At> static inline PYLLAMA_SPEC_INLINE void unpack(At b, Weights & w) {
        quarters_of(b, w.q);
        for (__m512i & x : w.q) {
            x = _mm512_xor_si512(x, bytes(128));
        }
        w.d = first_field(fields_of(heads(b)));
    }
};

struct Iq4Nl : OfBlocks {
    using Block = block_iq4_nl;
    static constexpr int OFFSET = 128;

    template <class At> static inline PYLLAMA_SPEC_INLINE void unpack(At b, Weights & w) {
        nibbles_of(b, offsetof(Block, qs), w.q);
        look_up(table_iq4(), w.q);
        w.d = first_field(fields_of(heads(b)));
    }
};

struct Mxfp4 : OfBlocks {
    using Block = block_mxfp4;
    static constexpr int OFFSET = 12;

    template <class At> static inline PYLLAMA_SPEC_INLINE void unpack(At b, Weights & w) {
        nibbles_of(b, offsetof(Block, qs), w.q);
        look_up(table_mxfp4(), w.q);
        uint64_t exponents = 0;
        for (int i = 0; i < 8; ++i) {
            exponents |= (uint64_t) b[i]->e << (8 * i);
        }
        w.d = power_of_two(exponents);
    }
};

}  // namespace pyllama_spec::avx512

#endif
