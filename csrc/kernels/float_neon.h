// Tiles of BF16 and F16 products with NEON, four weight rows high. The instructions for BF16 round otherwise for a single
// row, and half precision sums are too coarse: both types are multiplied as floats.
#pragma once

#include "tiles.h"

#if defined(__aarch64__)

#include <arm_neon.h>

#include <cstring>

namespace pyllama_spec::neon {

constexpr int64_t SIZE  = 2;  // bytes of a number in both types
constexpr int64_t LANES = 8;  // numbers per step, in two halves

struct Bf16 {
    static float32x4_t first(uint16x8_t x) {
        return vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(x), 16));
    }

    static float32x4_t second(uint16x8_t x) {
        return vreinterpretq_f32_u32(vshll_high_n_u16(x, 16));
    }
};

struct F16 {
    static float32x4_t first(uint16x8_t x) {
        return vcvt_f32_f16(vget_low_f16(vreinterpretq_f16_u16(x)));
    }

    static float32x4_t second(uint16x8_t x) {
        return vcvt_high_f32_f16(vreinterpretq_f16_u16(x));
    }
};

// Up to eight numbers, and zeros.
inline uint16x8_t numbers_at(const char * from, int64_t n) {
    uint16_t out[LANES] = {};
    std::memcpy(out, from, (n < LANES ? n : LANES) * SIZE);
    return vld1q_u16(out);
}

template <class T> struct Tiles {
    static constexpr int64_t HEIGHT = 4;  // 4 * 6 sums, four weights and an activation fill 29 of 32 registers

    // The activations of a tile as floats, half a step of each row in turn: every weight row reads them again.
    struct Rows {
        float * const floats;

        explicit Rows(char * work) : floats((float *) work) {}

        static size_t n_bytes(int64_t n_k) {
            return (size_t) ((n_k + LANES - 1) / LANES * LANES * WIDTH) * sizeof(float);
        }

        template <int W> void fill(const Operands & op, int64_t i1) {
            float * to = floats;
            for (int64_t k = 0; k < op.n_k; k += LANES, to += 4 * W) {
                for (int w = 0; w < W; ++w, to += 4) {
                    const uint16x8_t x = numbers_at(op.rows + (i1 + w) * op.row_stride + k * SIZE, op.n_k - k);
                    vst1q_f32(to, T::first(x));
                    vst1q_f32(to + 4 * W, T::second(x));
                }
            }
        }
    };

    template <int H, int W, bool AHEAD>
    [[gnu::always_inline]] static void tile(const Operands & op, Rows rows, int64_t i0, int64_t i1) {
        float32x4_t sums[H][W] = {};
        const float * x = rows.floats;
        const auto add = [&](const float32x4_t (&y)[H]) __attribute__((always_inline)) {
            for (int w = 0; w < W; ++w, x += 4) {
                const float32x4_t xw = vld1q_f32(x);
                for (int h = 0; h < H; ++h) {
                    sums[h][w] = vfmaq_f32(sums[h][w], y[h], xw);
                }
            }
        };
        for (int64_t k = 0; k < op.n_k; k += LANES) {
            uint16x8_t both[H];
            float32x4_t y[H];
            for (int h = 0; h < H; ++h) {
                const char * from = op.weights + (i0 + h) * op.weight_stride + k * SIZE;
                both[h] = k + LANES <= op.n_k ? vld1q_u16((const uint16_t *) from) : numbers_at(from, op.n_k - k);
                y[h]    = T::first(both[h]);
            }
            add(y);
            for (int h = 0; h < H; ++h) {
                y[h] = T::second(both[h]);
            }
            add(y);
        }
        for (int w = 0; w < W; ++w) {
            for (int h = 0; h < H; ++h) {
                // Lanes that are 2 apart, then 1: as in float_avx2.h.
                const float32x2_t two = vadd_f32(vget_low_f32(sums[h][w]), vget_high_f32(sums[h][w]));
                const float sum = vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
                std::memcpy(op.out + (i1 + w) * op.out_stride + (i0 + h) * sizeof(float), &sum, sizeof(float));
            }
        }
    }
};

}  // namespace pyllama_spec::neon

#endif
