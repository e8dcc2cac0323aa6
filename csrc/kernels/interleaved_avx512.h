// Tiles of eight interleaved weight rows with AVX-512 VNNI: lanes 2i and 2i + 1 belong to weight row i, and eight
// numbers of an activation row are repeated for all of them.
#pragma once

#include "blocks_avx512.h"

#if defined(PYLLAMA_SPEC_BLOCKS_AVX512)

namespace pyllama_spec::avx512 {

inline __m512i eight_times(const void * eight) {
    return _mm512_set1_epi64(load<int64_t>(eight));
}

// ---- blocks of 32

template <class B> inline PYLLAMA_SPEC_INLINE void interleaved_nibbles(const B & b, __m512i (&q)[4]) {
    const __m512i first = load_512(b.qs), second = load_512(b.qs + 64);
    q[0] = _mm512_and_si512(first, bytes(15));
    q[1] = _mm512_and_si512(second, bytes(15));
    q[2] = _mm512_and_si512(_mm512_srli_epi16(first, 4), bytes(15));
    q[3] = _mm512_and_si512(_mm512_srli_epi16(second, 4), bytes(15));
}

struct Q4_0x8 {
    using Block = block_q4_0x8;
    using Flat  = Q4_0;

    static inline PYLLAMA_SPEC_INLINE __m512 unpack(const Block & b, __m512i (&q)[4]) {
        interleaved_nibbles(b, q);
        for (__m512i & x : q) {
            x = _mm512_xor_si512(x, bytes(8));
        }
        return twice(_mm_loadu_si128((const __m128i *) b.d));
    }
};

struct Iq4Nlx8 {
    using Block = block_iq4_nlx8;
    using Flat  = Iq4Nl;

    static inline PYLLAMA_SPEC_INLINE __m512 unpack(const Block & b, __m512i (&q)[4]) {
        interleaved_nibbles(b, q);
        look_up(table_iq4(), q);
        return twice(_mm_loadu_si128((const __m128i *) b.d));
    }
};

struct Mxfp4x8 {
    using Block = block_mxfp4x8;
    using Flat  = Mxfp4;

    static inline PYLLAMA_SPEC_INLINE __m512 unpack(const Block & b, __m512i (&q)[4]) {
        interleaved_nibbles(b, q);
        look_up(table_mxfp4(), q);
        return power_of_two(load<uint64_t>(b.e));
    }
};

// Adds the two lanes of each pair, for eight weight rows by W rows.
template <int W> inline PYLLAMA_SPEC_INLINE void store_pairs(const __m512 (&sums)[W], const Job & job, int64_t i0, int row) {
    const __m512i evens = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 0, 0, 0, 0, 0, 0, 0, 0);
    for (int w = 0; w < W; ++w) {
        const __m512 both = _mm512_add_ps(sums[w], _mm512_permute_ps(sums[w], 0xb1));
        _mm256_storeu_ps(job.out[row + w] + i0, _mm512_castps512_ps256(_mm512_permutexvar_ps(evens, both)));
    }
}

template <class T, int W> void tile_x8(const Job & job, int64_t begin, int64_t end, int row) {
    const Group * x = job.x + row * job.n_groups;
    for (int64_t i0 = begin; i0 < end; i0 += 8) {
        const typename T::Block * blocks = (const typename T::Block *) (job.weights + i0 / 8 * job.stride);
        __m512 sums[W];
        for (int c = 0; c < W; ++c) {
            sums[c] = _mm512_setzero_ps();
        }
        for (int64_t i = 0; i < job.n_k / 32; ++i) {
            if constexpr (W > 1) {  // for a single row the processor's own prefetch is faster
                prefetch((const char *) (blocks + i) + 2048, sizeof(*blocks));
            }
            __m512i q[4];
            const __m512 d = T::unpack(blocks[i], q);
            for (int c = 0; c < W; ++c) {
                const Group & group = x[c * job.n_groups + i / 8];
                const int64_t b = i % 8;
                __m512i s = eight_times(group.start[0] + 2 * b);
                for (int j = 0; j < 4; ++j) {
                    s = _mm512_dpbusd_epi32(s, q[j], eight_times(group.q[j] + 8 * b));
                }
                const __m512 scale = _mm512_mul_ps(d, _mm512_set1_ps(group.d[2 * b]));
                sums[c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s), scale, sums[c]);
            }
        }
        store_pairs<W>(sums, job, i0, row);
    }
}

// ---- Q4_K

// Two blocks of 32 for the eight rows.
struct PairOfBlocks {
    __m512i low[4], high[4];  // 8 numbers of the first block, and of the second
    __m512i scales;           // in 16 bits, in PACKSSDW's order of the two blocks' sums

    inline PYLLAMA_SPEC_INLINE PairOfBlocks(const block_q4_Kx8 & from, int j, uint64_t first, uint64_t second) {
        for (int c = 0; c < 4; ++c) {
            const __m512i both = load_512(from.qs + 256 * j + 64 * c);
            low[c]  = _mm512_and_si512(both, bytes(15));
            high[c] = _mm512_and_si512(_mm512_srli_epi16(both, 4), bytes(15));
        }
        const __m256i all = _mm256_broadcastsi128_si256(_mm_set_epi64x((long long) second, (long long) first));
        scales = _mm512_cvtepu8_epi16(_mm256_shuffle_epi8(all, _mm256_setr_epi8(
            0, 0, 1, 1, 8, 8, 9, 9, 2, 2, 3, 3, 10, 10, 11, 11, 4, 4, 5, 5, 12, 12, 13, 13, 6, 6, 7, 7, 14, 14, 15, 15)));
    }

    // The sum of 16 products of 15 * 128 fits in 16 bits.
    inline PYLLAMA_SPEC_INLINE __m512i add(__m512i sum, const Group & x, int j) const {
        __m512i a = _mm512_setzero_si512(), b = a;
        for (int c = 0; c < 4; ++c) {
            a = _mm512_dpbusd_epi32(a, low[c], eight_times(x.q[c] + 16 * j));
            b = _mm512_dpbusd_epi32(b, high[c], eight_times(x.q[c] + 16 * j + 8));
        }
#if defined(__GNUC__)
        // Otherwise GCC computes several rows at once in the tile of four, and spills three of its vectors to memory.
        __asm__("" : "+v"(a), "+v"(b));
#endif
        return _mm512_dpwssd_epi32(sum, _mm512_packs_epi32(a, b), scales);
    }
};

template <int W> void tile_q4_Kx8(const Job & job, int64_t begin, int64_t end, int row) {
    constexpr size_t NEAR = 3072, N_AHEAD = sizeof(block_q4_Kx8) / 4;
    const Group * x = job.x + row * job.n_groups;
    // Each group of four lanes after PACKSSDW holds two weight rows in a pair's first block, then the same two in its
    // second.
    const __m512i rows   = _mm512_setr_epi32(0, 1, 0, 1, 2, 3, 2, 3, 4, 5, 4, 5, 6, 7, 6, 7);
    const __m512i firsts = _mm512_setr_epi32(0, 1, 4, 5, 8, 9, 12, 13, 0, 0, 0, 0, 0, 0, 0, 0);
    for (int64_t i0 = begin; i0 < end; i0 += 8) {
        const block_q4_Kx8 * blocks = (const block_q4_Kx8 *) (job.weights + i0 / 8 * job.stride);
        __m512 sums[W];
        for (int c = 0; c < W; ++c) {
            sums[c] = _mm512_setzero_ps();
        }
        for (int64_t g = 0; g < job.n_groups; ++g) {
            const block_q4_Kx8 & from = blocks[g];
            uint64_t scales[8], mins[8];
            for (int b = 0; b < 8; ++b) {
                scales_of(from.scales[b], scales[b], mins[b]);
            }
            __m512i whole[W];
            for (int c = 0; c < W; ++c) {
                whole[c] = _mm512_setzero_si512();
            }
            for (int j = 0; j < 4; ++j) {
                if constexpr (W == 1) {
                    prefetch_far((const char *) (&from + 1) + NEAR + N_AHEAD * j, N_AHEAD);
                } else {
                    prefetch((const char *) (&from + 1) + NEAR + N_AHEAD * j, N_AHEAD);
                }
                const PairOfBlocks w(from, j, scales[2 * j], scales[2 * j + 1]);
                for (int c = 0; c < W; ++c) {
                    whole[c] = w.add(whole[c], x[c * job.n_groups + g], j);
                }
            }
            __m256i least[4];
            for (int j = 0; j < 4; ++j) {
                least[j] = _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(
                    _mm_cvtsi64_si128((long long) mins[2 * j]), _mm_cvtsi64_si128((long long) mins[2 * j + 1])));
            }
            const __m512 d = _mm512_permutexvar_ps(rows, _mm512_castps256_ps512(
                _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) from.d))));
            const __m512 dmin = _mm512_maskz_permutexvar_ps(0x3333, rows, _mm512_castps256_ps512(
                _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) from.dmin))));
            for (int c = 0; c < W; ++c) {
                const Group & group = x[c * job.n_groups + g];
                __m256i m = _mm256_setzero_si256();
                for (int j = 0; j < 4; ++j) {
                    m = _mm256_dpwssd_epi32(m, least[j], _mm256_set1_epi32(load<int>(group.pairs[j])));
                }
                const __m512 off = _mm512_permutexvar_ps(rows, _mm512_castps256_ps512(_mm256_cvtepi32_ps(m)));
                const __m512 sum = _mm512_fnmadd_ps(off, dmin, _mm512_mul_ps(_mm512_cvtepi32_ps(whole[c]), d));
                sums[c] = _mm512_fmadd_ps(sum, _mm512_set1_ps(group.d[0]), sums[c]);
            }
        }
        for (int c = 0; c < W; ++c) {
            const __m512 both = _mm512_add_ps(sums[c], _mm512_permute_ps(sums[c], 0x4e));
            _mm256_storeu_ps(job.out[row + c] + i0, _mm512_castps512_ps256(_mm512_permutexvar_ps(firsts, both)));
        }
    }
}

}  // namespace pyllama_spec::avx512

#endif
