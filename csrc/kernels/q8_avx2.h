// Tiles of Q8_0 and Q4_0 products with AVX2.
//
// VPMADDUBSW multiplies unsigned bytes by signed ones and adds pairs up in 16 bits. Of Q8_0 the weights' signs go
// to the activations: 2 * 128 * 127 fits. Of Q4_0 the nibbles are taken as 0 .. 15, so that four such sums fit, and
// what is too much, 8 times the sum of the activations, is taken off once for each block.
#pragma once

#include "q8.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include <cstring>

namespace pyllama_spec::avx2 {

constexpr int64_t UNIT = QK8_0;  // a row is computed in steps of so many numbers

// The sum of all 32-bit lanes.
inline int32_t sum_lanes(__m256i x) {
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
    return _mm_cvtsi128_si32(s);
}

// Pairs of 16-bit lanes.
inline __m256i add_pairs(__m256i x) {
    return _mm256_madd_epi16(x, _mm256_set1_epi16(1));
}

// Activations of one tile with their scales, and for nibbles that are 8 too large what half of a sum begins with.
struct Packed {
    int8_t * const  q;
    float * const   d;
    int32_t * const start;

    Packed(char * work, int64_t n_k)
        : q((int8_t *) work), d((float *) (work + WIDTH * n_k)), start((int32_t *) (d + WIDTH * n_k / QK8_0)) {}

    static size_t n_bytes(int64_t n_k) {
        return (size_t) (WIDTH * n_k + WIDTH * n_k / QK8_0 * (int64_t) (sizeof(float) + sizeof(int32_t)));
    }

    void fill(const Operands & op, int64_t i1, int64_t width) {
        const int64_t n_blocks = op.n_k / QK8_0;
        const __m256i ones     = _mm256_set1_epi8(1);
        for (int64_t w = 0; w < width; ++w) {
            const block_q8_0 * from = (const block_q8_0 *) (op.rows + (i1 + w) * op.row_stride);
            for (int64_t b = 0; b < n_blocks; ++b) {
                const __m256i x = _mm256_loadu_si256((const __m256i *) from[b].qs);
                _mm256_store_si256((__m256i *) (q + w * op.n_k + b * QK8_0), x);
                d[w * n_blocks + b]     = to_float(from[b].d);
                start[w * n_blocks + b] = -4 * sum_lanes(add_pairs(_mm256_maddubs_epi16(ones, x)));
            }
        }
    }
};

inline float sum_lanes(__m256 x) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

template <int W> void rows_q8_0(const Operands & op, const Packed & x, int64_t i0, int64_t end0, int64_t i1) {
    const int64_t n_blocks = op.n_k / QK8_0;
    for (; i0 < end0; ++i0) {
        const block_q8_0 * row = (const block_q8_0 *) (op.weights + i0 * op.weight_stride);
        __m256 sums[W];
        for (int w = 0; w < W; ++w) {
            sums[w] = _mm256_setzero_ps();
        }
        for (int64_t b = 0; b < n_blocks; ++b) {
            _mm_prefetch((const char *) (row + b) + 2048, _MM_HINT_T0);
            const __m256i y    = _mm256_loadu_si256((const __m256i *) row[b].qs);
            const __m256i size = _mm256_abs_epi8(y);
            const __m256  dy   = _mm256_set1_ps(to_float(row[b].d));
            for (int w = 0; w < W; ++w) {
                const __m256i q = _mm256_load_si256((const __m256i *) (x.q + w * op.n_k + b * QK8_0));
                const __m256i s = add_pairs(_mm256_maddubs_epi16(size, _mm256_sign_epi8(q, y)));
                const __m256  scale = _mm256_mul_ps(dy, _mm256_set1_ps(x.d[w * n_blocks + b]));
                sums[w] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(s), scale, sums[w]);
            }
        }
        for (int w = 0; w < W; ++w) {
            ((float *) (op.out + (i1 + w) * op.out_stride))[i0] = sum_lanes(sums[w]);
        }
    }
}

inline __m256i eight_times(const int8_t * eight) {
    int64_t x;
    std::memcpy(&x, eight, sizeof(x));
    return _mm256_set1_epi64x(x);
}

// The sums of four of eight interleaved weight rows; lanes 2i and 2i + 1 belong to row i of them.
template <int W, bool AHEAD> void tile_q4_0x8(
        const Operands & op, const Packed & x, const block_q4_0x8 * group, int half, int64_t i0, int64_t i1) {
    const int64_t n_blocks = op.n_k / QK8_0;
    const __m256i sign     = _mm256_set1_epi8((char) 0x88);
    const __m256i low      = _mm256_set1_epi8(15);
    const __m256i twice    = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
    __m256 sums[W];
    for (int w = 0; w < W; ++w) {
        sums[w] = _mm256_setzero_ps();
    }
    for (int64_t b = 0; b < n_blocks; ++b) {
        if (AHEAD) {
            const char * next = (const char *) (group + b) + 2048;
            _mm_prefetch(next, _MM_HINT_T0);
            _mm_prefetch(next + 64, _MM_HINT_T0);
        }
        const uint8_t * qs     = group[b].qs + 32 * half;
        const __m256i   first  = _mm256_xor_si256(_mm256_loadu_si256((const __m256i *) qs), sign);
        const __m256i   second = _mm256_xor_si256(_mm256_loadu_si256((const __m256i *) (qs + 64)), sign);
        // In the order of k: 0 .. 7, 8 .. 15, 16 .. 23, 24 .. 31.
        const __m256i y[4] = {
            _mm256_and_si256(first, low), _mm256_and_si256(second, low),
            _mm256_and_si256(_mm256_srli_epi16(first, 4), low), _mm256_and_si256(_mm256_srli_epi16(second, 4), low),
        };
        int64_t four;
        std::memcpy(&four, group[b].d + 4 * half, sizeof(four));
        const __m128 d  = _mm_cvtph_ps(_mm_cvtsi64_si128(four));
        const __m256 dy = _mm256_permutevar8x32_ps(_mm256_castps128_ps256(d), twice);
        for (int w = 0; w < W; ++w) {
            const int8_t * q = x.q + w * op.n_k + b * QK8_0;
            __m256i s = _mm256_maddubs_epi16(y[0], eight_times(q));
            for (int c = 1; c < 4; ++c) {
                s = _mm256_add_epi16(s, _mm256_maddubs_epi16(y[c], eight_times(q + 8 * c)));
            }
            s = _mm256_add_epi32(add_pairs(s), _mm256_set1_epi32(x.start[w * n_blocks + b]));
            const __m256 scale = _mm256_mul_ps(dy, _mm256_set1_ps(x.d[w * n_blocks + b]));
            sums[w] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(s), scale, sums[w]);
        }
    }
    for (int w = 0; w < W; ++w) {
        const __m256 pairs = _mm256_hadd_ps(sums[w], sums[w]);
        const __m128 four  = _mm_movelh_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1));
        _mm_storeu_ps((float *) (op.out + (i1 + w) * op.out_stride) + i0 + 4 * half, four);
    }
}

template <int W> void rows_q4_0x8(const Operands & op, const Packed & x, int64_t i0, int64_t end0, int64_t i1) {
    for (; i0 < end0; i0 += 8) {
        const block_q4_0x8 * group = (const block_q4_0x8 *) (op.weights + i0 / 8 * op.weight_stride);
        tile_q4_0x8<W, true>(op, x, group, 0, i0, i1);
        tile_q4_0x8<W, false>(op, x, group, 1, i0, i1);
    }
}

}  // namespace pyllama_spec::avx2

#endif
