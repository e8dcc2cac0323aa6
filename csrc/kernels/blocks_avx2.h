// Tiles of quantised weights with AVX2, half a group at a time.
#pragma once

#include "stream.h"
#include "unpack_k_avx2.h"

#if defined(PYLLAMA_SPEC_BLOCKS_AVX2)

namespace pyllama_spec::avx2 {

// Multiplies signed 8-bit weights by activations; sums in 16 bits.
inline __m256i signed_pairs(__m256i size, __m256i weights, __m256i x) {
    return _mm256_maddubs_epi16(size, _mm256_sign_epi8(x, weights));
}

template <class T> inline PYLLAMA_SPEC_INLINE __m256i chain(const Weights & w, const Group & x, int i, int h) {
    constexpr int LENGTH = 4 / T::CHAINS;
    const int first = i * LENGTH;
    if constexpr (T::IS_SIGNED) {
        __m256i s = _mm256_setzero_si256();
        for (int c = first; c < first + LENGTH; ++c) {
            s = _mm256_add_epi32(s, add_pairs(signed_pairs(_mm256_abs_epi8(w.q[c]), w.q[c], load_256(x.q[c] + 32 * h))));
        }
        return s;
    }
    __m256i s = _mm256_maddubs_epi16(w.q[first], load_256(x.q[first] + 32 * h));
    for (int c = first + 1; c < first + LENGTH; ++c) {
        s = _mm256_add_epi16(s, _mm256_maddubs_epi16(w.q[c], load_256(x.q[c] + 32 * h)));
    }
    s = add_pairs(s);
    return T::HAS_MINS ? s : _mm256_add_epi32(s, load_256(x.start[i] + 8 * h));
}

template <class T> inline PYLLAMA_SPEC_INLINE __m256 product(const Weights & w, const Group & x, int h) {
    __m256 out = _mm256_mul_ps(_mm256_cvtepi32_ps(chain<T>(w, x, 0, h)), w.d[0]);
    if constexpr (T::CHAINS == 2) {
        out = _mm256_fmadd_ps(_mm256_cvtepi32_ps(chain<T>(w, x, 1, h)), w.d[1], out);
    }
    if constexpr (T::HAS_MINS) {
        for (int i = 0; i < T::CHAINS; ++i) {
            out = _mm256_fmadd_ps(_mm256_load_ps(x.sums[i] + 8 * h), w.m[i], out);
        }
    }
    return out;
}

inline float sum_lanes(__m256 x) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

template <class T, int W> void tile(const Job & job, int64_t begin, int64_t end, int row) {
    using Block = typename T::Block;
    constexpr int PER_HALF = T::PER_GROUP / 2;  // 0 if a block is a whole group
    const int64_t n_blocks = job.n_k * T::PER_GROUP / GROUP, n_whole = n_blocks / T::PER_GROUP;
    const Group * x = job.x + row * job.n_groups;
    const bool    is_room = fit_first_cache(job, W);
    const Stream::To to   = W == 1 ? Stream::To::PAGES : is_room ? Stream::To::FIRST_CACHE : Stream::To::SECOND_CACHE;
    Stream stream = { job.weights + begin * job.stride + (is_room ? 1536 : 3072), job.is_cached ? Stream::To::NONE : to };
    for (int64_t i0 = begin; i0 < end; ++i0) {
        const Block * blocks = (const Block *) (job.weights + i0 * job.stride);
        __m256 sums[W];
        for (int c = 0; c < W; ++c) {
            sums[c] = _mm256_setzero_ps();
        }
        const auto add = [&](auto from, int64_t g) PYLLAMA_SPEC_INLINE {
            for (int h = 0; h < 2; ++h) {
                Weights w;
                T::unpack(from.from(PER_HALF * h), h, w);
                for (int c = 0; c < W; ++c) {
                    const Group & group = x[c * job.n_groups + g];
                    sums[c] = _mm256_fmadd_ps(product<T>(w, group, h), _mm256_load_ps(group.d + 8 * h), sums[c]);
                }
            }
        };
        for (int64_t g = 0; g < n_whole; ++g) {
            stream.advance(sizeof(Block) * T::PER_GROUP);
            add(Blocks<Block>{ blocks + g * T::PER_GROUP }, g);
        }
        if constexpr (T::PER_GROUP > 1) {
            if (n_whole < job.n_groups) {
                const int64_t before = n_whole * T::PER_GROUP;
                stream.advance((n_blocks - before) * sizeof(Block));
                add(LastBlocks<Block>{ blocks + before, (int) (n_blocks - before) }, n_whole);
            }
        }
        for (int c = 0; c < W; ++c) {
            job.out[row + c][i0] = sum_lanes(sums[c]);
        }
    }
}

}  // namespace pyllama_spec::avx2

#endif
