// Tiles of quantised weights with AVX-512 VNNI. VPDPBUSD multiplies unsigned bytes (weights) by signed bytes
// (activations) and adds four products; blocks.h describes which.
#pragma once

#include "stream.h"
#include "unpack_k_avx512.h"

#if defined(PYLLAMA_SPEC_BLOCKS_AVX512)

namespace pyllama_spec::avx512 {

// ---- tiles of one or two weight rows: activations of long rows come from the second-level cache, and one load serves
// both rows. A single activation row is limited only by memory.

template <class T, int H>
inline PYLLAMA_SPEC_INLINE void add_products(const Weights (&w)[H], const Group & x, __m512 (&sums)[H]) {
    __m512i s[H];
    for (int h = 0; h < H; ++h) {
        s[h] = T::HAS_MINS ? _mm512_setzero_si512() : _mm512_load_si512(x.start[0]);
    }
    for (int c = 0; c < 4; ++c) {
        const __m512i q = H == 1 ? _mm512_load_si512(x.q[c]) : load_once(x.q[c]);
        for (int h = 0; h < H; ++h) {
            s[h] = _mm512_dpbusd_epi32(s[h], w[h].q[c], q);
        }
    }
    for (int h = 0; h < H; ++h) {
        __m512 out = _mm512_mul_ps(_mm512_cvtepi32_ps(s[h]), w[h].d);
        if constexpr (T::HAS_MINS) {
            out = _mm512_fmadd_ps(_mm512_load_ps(x.sums[0]), w[h].m, out);
        }
        sums[h] = _mm512_fmadd_ps(out, _mm512_load_ps(x.d), sums[h]);
    }
}

// The sums over the 16 lanes of W vectors, each in the same order.
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

template <class T, int H, int W>
inline PYLLAMA_SPEC_INLINE void rows_of_tile(const Job & job, int64_t i0, int row, Stream & stream) {
    using Block = typename T::Block;
    const int64_t n_blocks = job.n_k * T::PER_GROUP / GROUP, n_whole = n_blocks / T::PER_GROUP;
    const char * weights = job.weights + i0 * job.stride;
    const Group * x = job.x + row * job.n_groups;
    __m512 sums[W][H];
    for (int c = 0; c < W; ++c) {
        for (int h = 0; h < H; ++h) {
            sums[c][h] = _mm512_setzero_ps();
        }
    }
    const auto add = [&](auto from, int64_t g) PYLLAMA_SPEC_INLINE {
        Weights w[H];
        for (int h = 0; h < H; ++h) {
            T::unpack(from((const Block *) (weights + h * job.stride) + g * T::PER_GROUP), w[h]);
        }
        for (int c = 0; c < W; ++c) {
            add_products<T, H>(w, x[c * job.n_groups + g], sums[c]);
        }
    };
    for (int64_t g = 0; g < n_whole; ++g) {
        stream.advance(H * sizeof(Block) * T::PER_GROUP);
        add([](const Block * first) { return Blocks<Block>{ first }; }, g);
    }
    if constexpr (T::PER_GROUP > 1) {
        if (n_whole < job.n_groups) {
            const int n_last = (int) (n_blocks - n_whole * T::PER_GROUP);
            stream.advance(H * n_last * sizeof(Block));
            add([n_last](const Block * first) { return LastBlocks<Block>{ first, n_last }; }, n_whole);
        }
    }
    for (int h = 0; h < H; ++h) {
        __m512 of_row[W];
        for (int c = 0; c < W; ++c) {
            of_row[c] = sums[c][h];
        }
        store_sums<W>(of_row, job, i0 + h, row);
    }
}

template <class T, int W> void tile(const Job & job, int64_t begin, int64_t end, int row) {
    constexpr int64_t NEAR = 3072;
    constexpr size_t  N_BYTES = sizeof(typename T::Block) * T::PER_GROUP;
    // Up to this many activation rows, weight rows are read one by one, in memory order. Reading two at a time saves
    // activation loads, but these are few beside such wide weights. For narrower weights the processor prefetches too
    // little that way.
    constexpr int     ONE_BY_ONE = N_BYTES > 256 ? 5 : N_BYTES > 200 ? 3 : N_BYTES > 128 ? 1 : 0;
    // With so many bytes for so few products, prefetched weights leave the first-level cache no lines for activations.
    // Short rows are the exception: the processor does not prefetch them from the second-level cache, so their weights
    // go to the first.
    constexpr bool    is_wide = N_BYTES > 256;
    const bool        is_room = fit_first_cache(job, W);
    Stream stream = { job.weights + begin * job.stride + NEAR, Stream::To::PAGES };
    int64_t i0 = begin;
    if (!(W <= ONE_BY_ONE && (W == 1 || is_room))) {
        constexpr int H = W == 1 ? 1 : 2;
        const bool is_first = W == 1 || (is_room && (!is_wide || job.n_groups < 4));
        stream.to  = is_first ? Stream::To::FIRST_CACHE : Stream::To::SECOND_CACHE;
        stream.at += (H - 1) * job.stride;
        if (job.is_cached) {
            stream.to = Stream::To::NONE;
        }
        for (; i0 + H <= end; i0 += H) {
            rows_of_tile<T, H, W>(job, i0, row, stream);
        }
    }
    for (; i0 < end; ++i0) {
        rows_of_tile<T, 1, W>(job, i0, row, stream);
    }
}

}  // namespace pyllama_spec::avx512

#endif
