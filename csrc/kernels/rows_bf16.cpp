// BF16 weights times the few rows of a verify batch. Compiled into the engine's CPU backend, with its flags.
//
// The engine computes one dot product at a time; for five rows that takes three times as long as for one,
// though both read the same weights from memory. Here a block of weights stays in registers for all rows.
// A result depends on its weight row and its activation row alone, never on how many rows there are or
// which thread computes it: one accumulator per result, in the order of k, and one tree to sum its lanes.
#include "rows.h"

#include "ggml-cpu-impl.h"
#include "ggml-cpu.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__AVX512BF16__) && defined(__AVX512F__)

#include <immintrin.h>

namespace {

constexpr int64_t LANES  = 32;  // products of one instruction
constexpr int64_t HEIGHT = 4;   // weight rows of a tile
constexpr int64_t WIDTH  = 6;   // the widest tile: 4 * 6 accumulators, 6 activations and a weight fill 31 registers

__m512bh load(const ggml_bf16_t * p) {
    return (__m512bh) _mm512_loadu_si512(p);
}

// The sums of four vectors. Every lane of the tree adds the same pairs, so each sum is independent of its neighbours.
__m128 sum_lanes(__m512 a, __m512 b, __m512 c, __m512 d) {
    const __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    const __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
    __m512 s = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
    s = _mm512_add_ps(s, _mm512_permute_ps(s, 0x4e));
    s = _mm512_add_ps(s, _mm512_permute_ps(s, 0xb1));
    const __m512i first_of_each = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 8, 4, 0);
    return _mm512_castps512_ps128(_mm512_permutexvar_ps(first_of_each, s));
}

struct Operands {
    const char * weights;
    size_t       weight_stride;  // bytes from row to row
    const char * rows;
    size_t       row_stride;
    char *       out;
    size_t       out_stride;
    int64_t      n_k;
};

template <int H, int W, bool AHEAD> void tile(const Operands & op, int64_t i0, int64_t i1) {
    __m512 sums[HEIGHT][W];
    for (int h = 0; h < HEIGHT; ++h) {
        for (int w = 0; w < W; ++w) {
            sums[h][w] = _mm512_setzero_ps();
        }
    }
    const char * weights = op.weights + i0 * op.weight_stride;
    const char * rows    = op.rows + i1 * op.row_stride;
    const char * ahead = weights + HEIGHT * op.weight_stride;
    for (int64_t k = 0; k < op.n_k; k += LANES) {
        __m512bh x[W];
        for (int w = 0; w < W; ++w) {
            x[w] = load((const ggml_bf16_t *) (rows + w * op.row_stride) + k);
        }
        for (int h = 0; h < H; ++h) {
            const ggml_bf16_t * weight = (const ggml_bf16_t *) (weights + h * op.weight_stride) + k;
            if (AHEAD) {
                _mm_prefetch(ahead, _MM_HINT_T0);
                ahead += 64;
            }
            const __m512bh y = load(weight);
            for (int w = 0; w < W; ++w) {
                sums[h][w] = _mm512_dpbf16_ps(sums[h][w], y, x[w]);
            }
        }
    }
    for (int w = 0; w < W; ++w) {
        float four[HEIGHT];
        _mm_storeu_ps(four, sum_lanes(sums[0][w], sums[1][w], sums[2][w], sums[3][w]));
        std::memcpy(op.out + (i1 + w) * op.out_stride + i0 * sizeof(float), four, H * sizeof(float));
    }
}

template <int W, bool AHEAD> void column(const Operands & op, int64_t i0, int64_t end0, int64_t i1) {
    for (; i0 + HEIGHT <= end0; i0 += HEIGHT) {
        tile<HEIGHT, W, AHEAD>(op, i0, i1);
    }
    for (; i0 < end0; ++i0) {
        tile<1, W, AHEAD>(op, i0, i1);
    }
}

template <bool AHEAD> void columns(const Operands & op, int64_t i0, int64_t end0, int64_t i1, int64_t width) {
    switch (width) {
        case 1: return column<1, AHEAD>(op, i0, end0, i1);
        case 2: return column<2, AHEAD>(op, i0, end0, i1);
        case 3: return column<3, AHEAD>(op, i0, end0, i1);
        case 4: return column<4, AHEAD>(op, i0, end0, i1);
        case 5: return column<5, AHEAD>(op, i0, end0, i1);
        default: return column<6, AHEAD>(op, i0, end0, i1);
    }
}

void chunk(const Operands & op, int64_t begin0, int64_t end0, int64_t n_rows) {
    int64_t n_tiles = (n_rows + WIDTH - 1) / WIDTH;
    for (int64_t i1 = 0; i1 < n_rows; --n_tiles) {
        const int64_t width = (n_rows - i1 + n_tiles - 1) / n_tiles;
        if (i1 == 0) {
            columns<true>(op, begin0, end0, i1, width);
        } else {
            columns<false>(op, begin0, end0, i1, width);
        }
        i1 += width;
    }
}

}  // namespace

bool pyllama_spec_mul_mat_bf16(const ggml_compute_params * params, const ggml_tensor * dst) {
    const ggml_tensor * weights = dst->src[0];
    const ggml_tensor * rows    = dst->src[1];
    const int64_t n_k = weights->ne[0], n_out = weights->ne[1], n_rows = rows->ne[1];
    const bool is_flat = weights->ne[2] == 1 && weights->ne[3] == 1 && rows->ne[2] == 1 && rows->ne[3] == 1;
    if (weights->type != GGML_TYPE_BF16 || rows->type != GGML_TYPE_F32 || !is_flat || n_k % LANES != 0) {
        return false;
    }
    const Operands op = {
        (const char *) weights->data, weights->nb[1], (const char *) params->wdata, n_k * sizeof(ggml_bf16_t),
        (char *) dst->data, dst->nb[1], n_k,
    };
    // Small enough that a thread that is held up does not hold up the others.
    const int64_t height   = std::clamp<int64_t>(n_out / (params->nth * 8) / 16 * 16, 16, 128);
    const int64_t n_chunks = (n_out + height - 1) / height;
    for (int64_t i = params->ith; i < n_chunks; i = ggml_threadpool_chunk_add(params->threadpool, 1)) {
        chunk(op, i * height, std::min(n_out, (i + 1) * height), n_rows);
    }
    return true;
}

#else

bool pyllama_spec_mul_mat_bf16(const ggml_compute_params *, const ggml_tensor *) {
    return false;
}

#endif
