// Tiles of quantised weights with AVX-512 VNNI. VPDPBUSD multiplies unsigned bytes, the weights, by signed ones, the
// activations, and adds up four products; see blocks.h for which.
#pragma once

#include "unpack_k_avx512.h"

#if defined(PYLLAMA_SPEC_BLOCKS_AVX512)


namespace pyllama_spec::avx512 {

inline void prefetch(const void * from, size_t n_bytes) {
    for (size_t i = 0; i < n_bytes; i += 64) {
        _mm_prefetch((const char *) from + i, _MM_HINT_T0);
    }
}

// ---- tiles of one weight row

template <class T> inline PYLLAMA_SPEC_INLINE __m512 product(const Weights & w, const Group & x) {
    constexpr int LENGTH = 4 / T::CHAINS;
    __m512 out = _mm512_setzero_ps();
    for (int i = 0; i < T::CHAINS; ++i) {
        __m512i s = T::HAS_MINS ? _mm512_setzero_si512() : _mm512_load_si512(x.start[i]);
        for (int c = i * LENGTH; c < (i + 1) * LENGTH; ++c) {
            s = _mm512_dpbusd_epi32(s, w.q[c], _mm512_load_si512(x.q[c]));
        }
        const __m512 f = _mm512_cvtepi32_ps(s);
        out = i == 0 ? _mm512_mul_ps(f, w.d[i]) : _mm512_fmadd_ps(f, w.d[i], out);
    }
    if constexpr (T::HAS_MINS) {
        for (int i = 0; i < T::CHAINS; ++i) {
            out = _mm512_fmadd_ps(_mm512_load_ps(x.sums[i]), w.m[i], out);
        }
    }
    return out;
}

// The sums of the 16 lanes of W vectors, each in the same order.
template <int W> inline PYLLAMA_SPEC_INLINE void store_sums(const __m512 (&sums)[W], const Job & job, int64_t i0, int row) {
    __m256 eight[(W + 3) / 4 * 4];
    for (int w = 0; w < W; ++w) {
        eight[w] = _mm256_add_ps(_mm512_castps512_ps256(sums[w]), _mm512_extractf32x8_ps(sums[w], 1));
    }
    for (int w = W; w % 4 != 0; ++w) {
        eight[w] = _mm256_setzero_ps();
    }
    alignas(16) float out[(W + 3) / 4 * 4];
    for (int w = 0; w < W; w += 4) {
        const __m256 s = _mm256_hadd_ps(_mm256_hadd_ps(eight[w], eight[w + 1]), _mm256_hadd_ps(eight[w + 2], eight[w + 3]));
        _mm_store_ps(out + w, _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1)));
    }
    for (int w = 0; w < W; ++w) {
        job.out[row + w][i0] = out[w];
    }
}

template <class T, int W> void tile(const Job & job, int64_t begin, int64_t end, int row) {
    using Block = typename T::Block;
    const int64_t n_blocks = job.n_k * T::PER_GROUP / GROUP, n_whole = n_blocks / T::PER_GROUP;
    const Group * x = job.x + row * job.n_groups;
    for (int64_t i0 = begin; i0 < end; ++i0) {
        const Block * blocks = (const Block *) (job.weights + i0 * job.stride);
        __m512 sums[W];
        for (int c = 0; c < W; ++c) {
            sums[c] = _mm512_setzero_ps();
        }
        const auto add = [&](auto from, int64_t g) PYLLAMA_SPEC_INLINE {
            Weights w;
            T::unpack(from, w);
            for (int c = 0; c < W; ++c) {
                const Group & group = x[c * job.n_groups + g];
                sums[c] = _mm512_fmadd_ps(product<T>(w, group), _mm512_load_ps(group.d), sums[c]);
            }
        };
        for (int64_t g = 0; g < n_whole; ++g) {
            const Block * from = blocks + g * T::PER_GROUP;
            prefetch((const char *) from + 3072, sizeof(Block) * T::PER_GROUP);
            add(Blocks<Block>{ from }, g);
        }
        if constexpr (T::PER_GROUP > 1) {
            if (n_whole < job.n_groups) {
                const int64_t before = n_whole * T::PER_GROUP;
                add(LastBlocks<Block>{ blocks + before, (int) (n_blocks - before) }, n_whole);
            }
        }
        store_sums<W>(sums, job, i0, row);
    }
}

}  // namespace pyllama_spec::avx512

#endif
