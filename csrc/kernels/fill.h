// Converts activation rows to groups (blocks.h), and reads weights byte by byte for the kernels.
#pragma once

#include "blocks.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__) && defined(__BMI2__)

#define PYLLAMA_SPEC_BLOCKS_AVX2

#include <immintrin.h>

#include <cstddef>
#include <cstring>

namespace pyllama_spec {

template <class T> T load(const void * from) {
    T out;
    std::memcpy(&out, from, sizeof(out));
    return out;
}

// Accesses consecutive blocks of a row, or the last blocks of a row padded with zero blocks. It does not copy whole
// blocks: loads are slow right after stores of a different size.
template <class B> struct Blocks {
    const B * first;

    inline PYLLAMA_SPEC_INLINE const B * operator[](int i) const {
        return first + i;
    }

    inline PYLLAMA_SPEC_INLINE Blocks from(int i) const {
        return { first + i };
    }
};

template <class B> struct LastBlocks {
    const B * first;
    int       n;

    inline PYLLAMA_SPEC_INLINE const B * operator[](int i) const {
        static constexpr B ZEROS = {};
        return i < n ? first + i : &ZEROS;
    }

    inline PYLLAMA_SPEC_INLINE LastBlocks from(int i) const {
        return { first + i, n - i };
    }
};

inline float half(ggml_half x) {
    return _cvtsh_ss(x);
}

// Unpacks eight 6-bit scales and eight minima from 12 bytes: Q4_K and Q5_K.
inline void scales_of(const uint8_t * from, uint64_t & scales, uint64_t & mins) {
    const uint32_t a = load<uint32_t>(from), b = load<uint32_t>(from + 4), c = load<uint32_t>(from + 8);
    scales = (a & 0x3f3f3f3f) | (uint64_t) ((c & 0x0f0f0f0f) | ((a >> 2) & 0x30303030)) << 32;
    mins   = (b & 0x3f3f3f3f) | (uint64_t) (((c >> 4) & 0x0f0f0f0f) | ((b >> 2) & 0x30303030)) << 32;
}

// Unpacks the 16 6-bit scales of Q3_K.
inline __m128i scales_of(const block_q3_K & b) {
    const uint32_t x = load<uint32_t>(b.scales), y = load<uint32_t>(b.scales + 4), z = load<uint32_t>(b.scales + 8);
    const auto part = [](uint32_t low, uint32_t high) { return (int) ((low & 0x0f0f0f0f) | (high & 0x30303030)); };
    return _mm_sub_epi8(
        _mm_setr_epi32(part(x, z << 4), part(y, z << 2), part(x >> 4, z), part(y >> 4, z >> 2)), _mm_set1_epi8(32));
}

// Unpacks the eight scales of IQ4_XS, plus 32.
inline uint64_t scales_of(const block_iq4_xs & b) {
    return _pdep_u64(load<uint32_t>(b.scales_l), 0x0f0f0f0f0f0f0f0f) | _pdep_u64(b.scales_h, 0x3030303030303030);
}

// A block of 32 numbers of a row, as the engine packs it.
inline const int8_t * numbers_of(const block_q8_0 * row, int64_t i, float & d) {
    d = half(row[i].d);
    return row[i].qs;
}

inline const int8_t * numbers_of(const block_q8_1 * row, int64_t i, float & d) {
    d = half(load<ggml_half>(row + i));
    return row[i].qs;
}

inline const int8_t * numbers_of(const block_q8_K * row, int64_t i, float & d) {
    d = row[i / 8].d;
    return row[i / 8].qs + i % 8 * 32;
}

template <class Rows> void fill_numbers(const char * row, int64_t first, int64_t n_blocks, Group & x) {
    for (int b = 0; b < 8; ++b) {
        if (first + b < n_blocks) {
            const int8_t * from = numbers_of((const Rows *) row, first + b, x.d[2 * b]);
            for (int c = 0; c < 4; ++c) {
                std::memcpy(x.q[c] + 8 * b, from + 8 * c, 8);
            }
        } else {
            x.d[2 * b] = 0;
            for (int c = 0; c < 4; ++c) {
                std::memset(x.q[c] + 8 * b, 0, 8);
            }
        }
        x.d[2 * b + 1] = x.d[2 * b];
    }
}

template <class T> void fill(const char * row, int64_t n_k, Group * out) {
    constexpr int LENGTH = 4 / T::CHAINS;
    for (int64_t first = 0; first < n_k / 32; first += 8) {
        Group & x = out[first / 8];
        fill_numbers<typename T::Rows>(row, first, n_k / 32, x);
        for (int i = 0; i < T::CHAINS; ++i) {
            alignas(64) int32_t s[16];
            T::add_up(x, i * LENGTH, LENGTH, T::HAS_MINS ? 1 : T::OFFSET, s);
            for (int lane = 0; lane < 16; ++lane) {
                if constexpr (T::HAS_MINS) {
                    x.sums[i][lane] = (float) s[lane];
                } else {
                    x.start[i][lane] = -s[lane];
                }
            }
        }
    }
}

}  // namespace pyllama_spec

#endif
