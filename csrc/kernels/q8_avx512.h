// Tiles of Q8_0 and Q4_0 products with AVX-512 VNNI.
//
// Both multiply bytes with VPDPBUSD, which wants one side unsigned. Activations are shifted by 128, and
// -128 times the sum of the weights is where the sum begins: one instruction per weights, not per product.
#pragma once

#include "q8.h"

#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__F16C__)

#include <cstring>

namespace pyllama_spec::avx512 {

constexpr int64_t UNIT = 2 * QK8_0;  // a row is computed in steps of so many numbers

// Activations of one tile, shifted by 128, with their scales.
struct Packed {
    uint8_t * const q;
    float * const   d;

    Packed(char * work, int64_t n_k) : q((uint8_t *) work), d((float *) (work + WIDTH * n_k)) {}

    static size_t n_bytes(int64_t n_k) {
        return (size_t) (WIDTH * n_k + WIDTH * n_k / QK8_0 * (int64_t) sizeof(float));
    }

    void fill(const Operands & op, int64_t i1, int64_t width) {
        const int64_t n_blocks = op.n_k / QK8_0;
        const __m256i sign = _mm256_set1_epi8((char) 0x80);
        for (int64_t w = 0; w < width; ++w) {
            const block_q8_0 * from = (const block_q8_0 *) (op.rows + (i1 + w) * op.row_stride);
            for (int64_t b = 0; b < n_blocks; ++b) {
                const __m256i x = _mm256_xor_si256(_mm256_loadu_si256((const __m256i *) from[b].qs), sign);
                _mm256_store_si256((__m256i *) (q + w * op.n_k + b * QK8_0), x);
                d[w * n_blocks + b] = to_float(from[b].d);
            }
        }
    }
};

// [a x 8, b x 8]: one number for each of two blocks.
inline __m512 spread(float a, float b) {
    return _mm512_insertf32x8(_mm512_set1_ps(a), _mm256_set1_ps(b), 1);
}

// Two weight rows at a time; their 32-byte blocks lie 34 bytes apart, so two of them make a register.
template <int H, int W> void tile_q8_0(const Operands & op, const Packed & x, int64_t i0, int64_t i1) {
    const int64_t  n_blocks = op.n_k / QK8_0;
    const __m512i  shift    = _mm512_set1_epi8((char) 0x80);
    const char *   ahead    = op.weights + (i0 + 4 * H) * op.weight_stride;
    __m512 sums[H][W];
    for (int h = 0; h < H; ++h) {
        for (int w = 0; w < W; ++w) {
            sums[h][w] = _mm512_setzero_ps();
        }
    }
    for (int64_t b = 0; b < n_blocks; b += 2) {
        __m512i y[H], start[H];
        __m512  dy[H];
        for (int h = 0; h < H; ++h) {
            const block_q8_0 * row = (const block_q8_0 *) (op.weights + (i0 + h) * op.weight_stride) + b;
            _mm_prefetch(ahead, _MM_HINT_T0);
            ahead += sizeof(block_q8_0) * 2;
            y[h] = _mm512_inserti64x4(
                _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *) row[0].qs)),
                _mm256_loadu_si256((const __m256i *) row[1].qs), 1);
            start[h] = _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_dpbusd_epi32(_mm512_setzero_si512(), shift, y[h]));
            dy[h] = spread(to_float(row[0].d), to_float(row[1].d));
        }
        for (int w = 0; w < W; ++w) {
            const __m512i q  = _mm512_load_si512(x.q + w * op.n_k + b * QK8_0);
            const __m512  dx = spread(x.d[w * n_blocks + b], x.d[w * n_blocks + b + 1]);
            for (int h = 0; h < H; ++h) {
                const __m512 product = _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(start[h], q, y[h]));
                sums[h][w] = _mm512_fmadd_ps(product, _mm512_mul_ps(dx, dy[h]), sums[h][w]);
            }
        }
    }
    for (int w = 0; w < W; ++w) {
        float * out = (float *) (op.out + (i1 + w) * op.out_stride) + i0;
        for (int h = 0; h < H; ++h) {
            out[h] = _mm512_reduce_add_ps(sums[h][w]);
        }
    }
}

template <int W> void rows_q8_0(const Operands & op, const Packed & x, int64_t i0, int64_t end0, int64_t i1) {
    for (; i0 + 2 <= end0; i0 += 2) {
        tile_q8_0<2, W>(op, x, i0, i1);
    }
    for (; i0 < end0; ++i0) {
        tile_q8_0<1, W>(op, x, i0, i1);
    }
}

inline __m512i nibbles(__m512i packed) {
    const __m512i values = _mm512_broadcast_i32x4(
        _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1));
    return _mm512_shuffle_epi8(values, _mm512_and_si512(packed, _mm512_set1_epi8(15)));
}

inline __m512i eight_times(const uint8_t * eight) {
    int64_t x;
    std::memcpy(&x, eight, sizeof(x));
    return _mm512_set1_epi64(x);
}

// Of eight interleaved weight rows: lanes 2i and 2i + 1 belong to weight row i.
template <int W> void tile_q4_0x8(const Operands & op, const Packed & x, int64_t i0, int64_t i1) {
    const int64_t        n_blocks = op.n_k / QK8_0;
    const block_q4_0x8 * group    = (const block_q4_0x8 *) (op.weights + i0 / 8 * op.weight_stride);
    const __m512i        shift    = _mm512_set1_epi8((char) 0x80);
    const __m512i        twice    = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    __m512 sums[W];
    for (int w = 0; w < W; ++w) {
        sums[w] = _mm512_setzero_ps();
    }
    for (int64_t b = 0; b < n_blocks; ++b) {
        const char * next = (const char *) (group + b) + 2048;
        _mm_prefetch(next, _MM_HINT_T0);
        _mm_prefetch(next + 64, _MM_HINT_T0);
        const __m512i first = _mm512_loadu_si512(group[b].qs), second = _mm512_loadu_si512(group[b].qs + 64);
        // In the order of k: 0 .. 7, 8 .. 15, 16 .. 23, 24 .. 31.
        const __m512i y[4] = {
            nibbles(first), nibbles(second),
            nibbles(_mm512_srli_epi16(first, 4)), nibbles(_mm512_srli_epi16(second, 4)),
        };
        __m512i start = _mm512_setzero_si512();
        for (const __m512i & part : y) {
            start = _mm512_dpbusd_epi32(start, shift, part);
        }
        start = _mm512_sub_epi32(_mm512_setzero_si512(), start);
        const __m256 d  = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) group[b].d));
        const __m512 dy = _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(d));
        for (int w = 0; w < W; ++w) {
            const uint8_t * q = x.q + w * op.n_k + b * QK8_0;
            __m512i s = start;
            for (int c = 0; c < 4; ++c) {
                s = _mm512_dpbusd_epi32(s, eight_times(q + 8 * c), y[c]);
            }
            const __m512 scale = _mm512_mul_ps(dy, _mm512_set1_ps(x.d[w * n_blocks + b]));
            sums[w] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s), scale, sums[w]);
        }
    }
    const __m512i evens = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 0, 0, 0, 0, 0, 0, 0, 0);
    for (int w = 0; w < W; ++w) {
        const __m512 both = _mm512_add_ps(sums[w], _mm512_permute_ps(sums[w], 0xb1));
        _mm256_storeu_ps((float *) (op.out + (i1 + w) * op.out_stride) + i0,
            _mm512_castps512_ps256(_mm512_permutexvar_ps(evens, both)));
    }
}

template <int W> void rows_q4_0x8(const Operands & op, const Packed & x, int64_t i0, int64_t end0, int64_t i1) {
    for (; i0 < end0; i0 += 8) {
        tile_q4_0x8<W>(op, x, i0, i1);
    }
}

}  // namespace pyllama_spec::avx512

#endif
