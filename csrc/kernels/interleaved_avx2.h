// Tiles of eight interleaved weight rows with AVX2, four rows at a time: lanes 2i and 2i + 1 belong to weight row i of
// these, and eight numbers of an activation row are repeated for all of them.
#pragma once

#include "blocks_avx2.h"

#if defined(PYLLAMA_SPEC_BLOCKS_AVX2)

namespace pyllama_spec::avx2 {

inline __m256i eight_times(const void * eight) {
    return _mm256_set1_epi64x(load<int64_t>(eight));
}

// ---- blocks of 32. half: which four of the eight rows.

template <class B> inline PYLLAMA_SPEC_INLINE void interleaved_nibbles(const B & b, int half, __m256i (&q)[4]) {
    const __m256i first = load_256(b.qs + 32 * half), second = load_256(b.qs + 64 + 32 * half);
    q[0] = low_nibbles(first);
    q[1] = low_nibbles(second);
    q[2] = high_nibbles(first);
    q[3] = high_nibbles(second);
}

inline __m128i four_halves(const ggml_half * from) {
    return _mm_cvtsi64_si128(load<long long>(from));
}

struct Q4_0x8 {
    using Block = block_q4_0x8;
    using Flat  = Q4_0;

    static inline PYLLAMA_SPEC_INLINE __m256 unpack(const Block & b, int half, __m256i (&q)[4]) {
        interleaved_nibbles(b, half, q);
        for (__m256i & x : q) {
            x = _mm256_xor_si256(x, bytes(8));
        }
        return twice(four_halves(b.d + 4 * half));
    }
};

struct Iq4Nlx8 {
    using Block = block_iq4_nlx8;
    using Flat  = Iq4Nl;

    static inline PYLLAMA_SPEC_INLINE __m256 unpack(const Block & b, int half, __m256i (&q)[4]) {
        interleaved_nibbles(b, half, q);
        look_up(table_iq4(), q);
        return twice(four_halves(b.d + 4 * half));
    }
};

struct Mxfp4x8 {
    using Block = block_mxfp4x8;
    using Flat  = Mxfp4;

    static inline PYLLAMA_SPEC_INLINE __m256 unpack(const Block & b, int half, __m256i (&q)[4]) {
        interleaved_nibbles(b, half, q);
        look_up(table_mxfp4(), q);
        return power_of_two(load<uint32_t>(b.e + 4 * half));
    }
};

template <class T> inline PYLLAMA_SPEC_INLINE __m256i sum_of(const __m256i (&q)[4], const Group & x, int64_t b) {
    if constexpr (T::Flat::IS_SIGNED) {
        __m256i s = _mm256_setzero_si256();
        for (int c = 0; c < 4; ++c) {
            s = _mm256_add_epi32(s, add_pairs(signed_pairs(_mm256_abs_epi8(q[c]), q[c], eight_times(x.q[c] + 8 * b))));
        }
        return s;
    }
    __m256i s = _mm256_maddubs_epi16(q[0], eight_times(x.q[0] + 8 * b));
    for (int c = 1; c < 4; ++c) {
        s = _mm256_add_epi16(s, _mm256_maddubs_epi16(q[c], eight_times(x.q[c] + 8 * b)));
    }
    return _mm256_add_epi32(add_pairs(s), eight_times(x.start[0] + 2 * b));
}

// Adds the two lanes of each pair, for four weight rows.
inline void store_pairs(__m256 sums, float * out) {
    const __m256 pairs = _mm256_hadd_ps(sums, sums);
    _mm_storeu_ps(out, _mm_movelh_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1)));
}

template <class T, int W> void tile_x8(const Job & job, int64_t begin, int64_t end, int row) {
    const Group * x = job.x + row * job.n_groups;
    for (int64_t i = 2 * (begin / 8); i < 2 * (end / 8); ++i) {
        const int half = (int) (i % 2);
        const typename T::Block * blocks = (const typename T::Block *) (job.weights + i / 2 * job.stride);
        __m256 sums[W];
        for (int c = 0; c < W; ++c) {
            sums[c] = _mm256_setzero_ps();
        }
        for (int64_t k = 0; k < job.n_k / 32; ++k) {
            if (half == 0) {
                prefetch((const char *) (blocks + k) + 2048, sizeof(*blocks));
            }
            __m256i q[4];
            const __m256 d = T::unpack(blocks[k], half, q);
            for (int c = 0; c < W; ++c) {
                const Group & group = x[c * job.n_groups + k / 8];
                const __m256 scale = _mm256_mul_ps(d, _mm256_set1_ps(group.d[2 * (k % 8)]));
                sums[c] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum_of<T>(q, group, k % 8)), scale, sums[c]);
            }
        }
        for (int c = 0; c < W; ++c) {
            store_pairs(sums[c], job.out[row + c] + 4 * i);
        }
    }
}

// ---- Q4_K

// The scales of four rows in 16 bits, each repeated four times.
inline PYLLAMA_SPEC_INLINE __m256i four_scales(uint64_t eight, int half) {
    const __m128i x = _mm_cvtsi32_si128((int) (eight >> (32 * half)));
    return _mm256_cvtepu8_epi16(_mm_shuffle_epi8(x, _mm_setr_epi8(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3)));
}

// Two blocks of 32 for four rows. The sum of eight products of 15 * 128 fits in 16 bits.
struct PairOfBlocks {
    __m256i low[4], high[4], first, second;

    inline PYLLAMA_SPEC_INLINE PairOfBlocks(const block_q4_Kx8 & from, int j, int half, const uint64_t * scales) {
        for (int c = 0; c < 4; ++c) {
            const __m256i both = load_256(from.qs + 256 * j + 64 * c + 32 * half);
            low[c]  = low_nibbles(both);
            high[c] = high_nibbles(both);
        }
        first  = four_scales(scales[2 * j], half);
        second = four_scales(scales[2 * j + 1], half);
    }

    inline PYLLAMA_SPEC_INLINE __m256i add(__m256i sum, const Group & x, int j) const {
        __m256i a = _mm256_setzero_si256(), b = a;
        for (int c = 0; c < 4; ++c) {
            a = _mm256_add_epi16(a, _mm256_maddubs_epi16(low[c], eight_times(x.q[c] + 16 * j)));
            b = _mm256_add_epi16(b, _mm256_maddubs_epi16(high[c], eight_times(x.q[c] + 16 * j + 8)));
        }
        return _mm256_add_epi32(sum, _mm256_add_epi32(_mm256_madd_epi16(a, first), _mm256_madd_epi16(b, second)));
    }
};

// For four rows, the minima of all blocks times the sums of the activations; in the first lane of each pair.
inline PYLLAMA_SPEC_INLINE __m256 minima(const uint64_t * mins, int half, const Group & x) {
    __m128i m = _mm_setzero_si128();
    for (int j = 0; j < 4; ++j) {
        const __m128i both = _mm_unpacklo_epi8(
            _mm_cvtsi32_si128((int) (mins[2 * j] >> (32 * half))), _mm_cvtsi32_si128((int) (mins[2 * j + 1] >> (32 * half))));
        m = _mm_add_epi32(m, _mm_madd_epi16(_mm_cvtepu8_epi16(both), _mm_set1_epi32(load<int>(x.pairs[j]))));
    }
    return _mm256_cvtepi32_ps(_mm256_cvtepu32_epi64(m));
}

template <int W> void tile_q4_Kx8(const Job & job, int64_t begin, int64_t end, int row) {
    const Group * x = job.x + row * job.n_groups;
    for (int64_t i = 2 * (begin / 8); i < 2 * (end / 8); ++i) {
        const int half = (int) (i % 2);
        const block_q4_Kx8 * blocks = (const block_q4_Kx8 *) (job.weights + i / 2 * job.stride);
        __m256 sums[W];
        for (int c = 0; c < W; ++c) {
            sums[c] = _mm256_setzero_ps();
        }
        for (int64_t g = 0; g < job.n_groups; ++g) {
            const block_q4_Kx8 & from = blocks[g];
            if (half == 0) {
                prefetch_far((const char *) (blocks + g + 1) + 3072, sizeof(from));
            }
            uint64_t scales[8], mins[8];
            for (int b = 0; b < 8; ++b) {
                scales_of(from.scales[b], scales[b], mins[b]);
            }
            __m256i whole[W];
            for (int c = 0; c < W; ++c) {
                whole[c] = _mm256_setzero_si256();
            }
            for (int j = 0; j < 4; ++j) {
                const PairOfBlocks w(from, j, half, scales);
                for (int c = 0; c < W; ++c) {
                    whole[c] = w.add(whole[c], x[c * job.n_groups + g], j);
                }
            }
            const __m256 d = twice(four_halves(from.d + 4 * half)), dmin = twice(four_halves(from.dmin + 4 * half));
            for (int c = 0; c < W; ++c) {
                const Group & group = x[c * job.n_groups + g];
                const __m256  sum   = _mm256_fnmadd_ps(
                    minima(mins, half, group), dmin, _mm256_mul_ps(_mm256_cvtepi32_ps(whole[c]), d));
                sums[c] = _mm256_fmadd_ps(sum, _mm256_set1_ps(group.d[0]), sums[c]);
            }
        }
        for (int c = 0; c < W; ++c) {
            store_pairs(sums[c], job.out[row + c] + 4 * i);
        }
    }
}

}  // namespace pyllama_spec::avx2

#endif
