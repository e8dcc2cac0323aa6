// Tiles of 16 interleaved weight rows with NEON, and their table. A lane is a weight row, and four vectors are a row of a
// plane: repacked.h describes the layouts. Every width adds a lane's products in the same order, block after block: integers within a block,
// whose sums have no order, and then one multiplication and addition of floats.
#if defined(__aarch64__)

#include "repacking.h"
#include "rows.h"

#include <arm_neon.h>

#include <utility>

namespace pyllama_spec {

namespace {

constexpr int HEIGHT = 16;


template <class T> inline PYLLAMA_SPEC_INLINE T load(const void * from) {
    T out;
    std::memcpy(&out, from, sizeof(out));
    return out;
}

template <class F, int... I> inline PYLLAMA_SPEC_INLINE void for_constants(F f, std::integer_sequence<int, I...>) {
    (f(std::integral_constant<int, I>()), ...);
}

// Calls f with the constants 0 .. N - 1: instructions have lanes and shifts as constants.
template <int N, class F> inline PYLLAMA_SPEC_INLINE void times(F f) {
    for_constants(f, std::make_integer_sequence<int, N>());
}

// Adds to the sum of each of four weight rows the products of its four numbers with those of lane LANE.
template <int LANE> inline PYLLAMA_SPEC_INLINE int32x4_t dot(int32x4_t sum, int8x16_t w, int8x16_t x) {
#if defined(__ARM_FEATURE_DOTPROD)
    return vdotq_laneq_s32(sum, w, x, LANE);
#else
    const int8x16_t four = vreinterpretq_s8_s32(vdupq_laneq_s32(vreinterpretq_s32_s8(x), LANE));
    // Two products fit 16 bits: activations are never -128.
    return vpadalq_s16(sum, vpaddq_s16(vmull_s8(vget_low_s8(w), vget_low_s8(four)), vmull_high_s8(w, four)));
#endif
}

// The integer sums of R activation rows and V vectors of weight rows. With the instruction for matrices two activation
// rows are multiplied at once, and a sum's lanes are two weight rows times them.
template <int R, int V> struct Sums {
    static constexpr int N_PAIRS = n_pairs(R), FIRST = 2 * N_PAIRS;  // FIRST: the first row without another

    int32x4_t pair[N_PAIRS + 1][V][2], single[R][V];

    // start: NULL, or the initial value of each row.
    inline PYLLAMA_SPEC_INLINE explicit Sums(const char * start) {
        for (int p = 0; p < N_PAIRS; ++p) {
            for (int v = 0; v < V; ++v) {
                pair[p][v][0] = pair[p][v][1] =
                    start ? vreinterpretq_s32_s64(vdupq_n_s64(load<int64_t>(start + 8 * p))) : vdupq_n_s32(0);
            }
        }
        for (int r = FIRST; r < R; ++r) {
            for (int v = 0; v < V; ++v) {
                single[r][v] = vdupq_n_s32(start ? load<int32_t>(start + 4 * r) : 0);
            }
        }
    }

    // Adds the products of 16 numbers: vectors of four of them, and numbers `at` and on of the part x of activations.
    template <int PART> inline PYLLAMA_SPEC_INLINE void add(const int8x16_t (&w)[4][V], const char * x, int at) {
#if defined(__ARM_FEATURE_MATMUL_INT8)
        for (int i = 0; i < (N_PAIRS ? 2 : 0); ++i) {
            int8x16_t two[V][2];  // eight numbers of two weight rows
            for (int v = 0; v < V; ++v) {
                const int32x4_t a = vreinterpretq_s32_s8(w[2 * i][v]), b = vreinterpretq_s32_s8(w[2 * i + 1][v]);
                two[v][0] = vreinterpretq_s8_s32(vzip1q_s32(a, b));
                two[v][1] = vreinterpretq_s8_s32(vzip2q_s32(a, b));
            }
            for (int p = 0; p < N_PAIRS; ++p) {
                const int8x16_t rows = load<int8x16_t>(x + 2 * (PART * p + at + 8 * i));
                for (int v = 0; v < V; ++v) {
                    pair[p][v][0] = vmmlaq_s32(pair[p][v][0], two[v][0], rows);
                    pair[p][v][1] = vmmlaq_s32(pair[p][v][1], two[v][1], rows);
                }
            }
        }
#endif
        for (int r = FIRST; r < R; ++r) {
            const int8x16_t row = load<int8x16_t>(x + PART * r + at);
            times<4>([&](auto c) PYLLAMA_SPEC_INLINE {
                for (int v = 0; v < V; ++v) {
                    single[r][v] = dot<c()>(single[r][v], w[c()][v], row);
                }
            });
        }
    }

    inline PYLLAMA_SPEC_INLINE int32x4_t of(int r, int v) const {
        if (r >= FIRST) {
            return single[r][v];
        }
        const int32x4_t(&both)[2] = pair[r / 2][v];
        return r % 2 ? vuzp2q_s32(both[0], both[1]) : vuzp1q_s32(both[0], both[1]);
    }
};

// ---- weights

inline PYLLAMA_SPEC_INLINE uint8x16_t bytes(const void * from) {
    return vld1q_u8((const uint8_t *) from);
}

// Moves bits from FROM on to TO and on.
template <int FROM, int TO> inline PYLLAMA_SPEC_INLINE uint8x16_t moved(uint8x16_t x) {
    if constexpr (FROM < TO) {
        return vshlq_n_u8(x, TO - FROM);
    } else if constexpr (FROM > TO) {
        return vshrq_n_u8(x, FROM - TO);
    } else {
        return x;
    }
}

// x with the bits of the mask from y.
inline PYLLAMA_SPEC_INLINE uint8x16_t joined(uint8x16_t x, uint8x16_t y, int mask) {
    return vbslq_u8(vdupq_n_u8((uint8_t) mask), y, x);
}

// Vector 4 * HALF + C of 32 numbers; at: the first byte of four rows.
template <int HALF, int C, int BITS>
inline PYLLAMA_SPEC_INLINE uint8x16_t numbers(const Numbers<BITS, HEIGHT> & q, int at) {
    if constexpr (BITS == 8) {
        return bytes(q.planes[4 * HALF + C] + at);
    } else {
        constexpr int LOW = BITS & 4, MID = BITS & 6;
        uint8x16_t x;
        if constexpr (LOW) {
            const uint8x16_t both = bytes(q.planes[BITS % 4 + C] + at);
            x = HALF ? vshrq_n_u8(both, 4) : vandq_u8(both, vdupq_n_u8(15));
        }
        if constexpr (BITS & 2) {
            const uint8x16_t two = moved<2 * C, LOW>(bytes(q.planes[BITS % 2 + HALF] + at));
            x = LOW ? joined(x, two, 3 << LOW) : vandq_u8(two, vdupq_n_u8(3));
        }
        if constexpr (BITS & 1) {
            x = joined(x, moved<4 * HALF + C, MID>(bytes(q.planes[0] + at)), 1 << MID);
        }
        return x;
    }
}

struct AsTheyAre {
    static inline PYLLAMA_SPEC_INLINE int8x16_t of(uint8x16_t x) {
        return vreinterpretq_s8_u8(x);
    }
};

constexpr int8_t IQ4_VALUES[]   = { -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113 };
constexpr int8_t MXFP4_VALUES[] = { 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12 };  // doubled

struct Iq4 {
    static inline PYLLAMA_SPEC_INLINE int8x16_t of(uint8x16_t x) {
        return vqtbl1q_s8(vld1q_s8(IQ4_VALUES), x);
    }
};

struct Mxfp4 {
    static inline PYLLAMA_SPEC_INLINE int8x16_t of(uint8x16_t x) {
        return vqtbl1q_s8(vld1q_s8(MXFP4_VALUES), x);
    }
};

// Adds the products of numbers 16 * HALF and on of 32; v0: the first vector of weight rows.
template <class Of, int PART, int HALF, int R, int V, int BITS>
inline PYLLAMA_SPEC_INLINE void add_half(Sums<R, V> & sums, const Numbers<BITS, HEIGHT> & q, int v0, const char * x) {
    int8x16_t w[4][V];
    times<4>([&](auto c) PYLLAMA_SPEC_INLINE {
        for (int v = 0; v < V; ++v) {
            w[c()][v] = Of::of(numbers<HALF, c()>(q, 16 * (v0 + v)));
        }
    });
    sums.template add<PART>(w, x, PART == 32 ? 16 * HALF : 0);
}

// Vector v of scales.
inline PYLLAMA_SPEC_INLINE float32x4_t scales_at(const ggml_half (&d)[HEIGHT], int v) {
    return vcvt_f32_f16(load<float16x4_t>(d + 4 * v));
}

inline PYLLAMA_SPEC_INLINE float32x4_t scales_at(const uint8_t (&e)[HEIGHT], int v) {  // as GGML_E8M0_TO_FP32_HALF
    const uint32x4_t x = vmovl_u16(vget_low_u16(vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(load<uint32_t>(e + 4 * v))))));
    const uint32x4_t tiny = vshlq_u32(vdupq_n_u32(0x00200000), vreinterpretq_s32_u32(x));
    const uint32x4_t usual = vshlq_n_u32(vsubq_u32(x, vdupq_n_u32(1)), 23);
    return vreinterpretq_f32_u32(vbslq_u32(vcltq_u32(x, vdupq_n_u32(2)), tiny, usual));
}

inline PYLLAMA_SPEC_INLINE int16x4_t scales_at(const int8_t (&scales)[HEIGHT], int v) {
    return vget_low_s16(vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(load<int32_t>(scales + 4 * v)))));
}

// ---- blocks of 32 numbers

template <class B> inline PYLLAMA_SPEC_INLINE float32x4_t scales_of(const B & b, int v) {
    return scales_at(b.d, v);
}

inline PYLLAMA_SPEC_INLINE float32x4_t scales_of(const BlockOfPowers<HEIGHT> & b, int v) {
    return scales_at(b.e, v);
}

template <class B, class Of = AsTheyAre, bool HAS_MINS = false> struct TileOf32 {
    using Block = B;
    static constexpr size_t N_X_BYTES = 40;
    static constexpr int    MOST_IN_TWOS = 2;  // activation rows whose sums leave registers for two vectors of weight rows

    template <int R, int V>
    static inline PYLLAMA_SPEC_INLINE void add(const B & b, const char * x, float32x4_t (&out)[R][4]) {
        times<4 / V>([&](auto i) PYLLAMA_SPEC_INLINE {
            constexpr int V0 = V * i();
            Sums<R, V> sums(HAS_MINS ? nullptr : x + 36 * R);
            add_half<Of, 32, 0>(sums, b.q, V0, x);
            add_half<Of, 32, 1>(sums, b.q, V0, x);
            for (int v = 0; v < V; ++v) {
                const float32x4_t d = scales_of(b, V0 + v);
                for (int r = 0; r < R; ++r) {
                    float32x4_t & to = out[r][V0 + v];
                    to = vfmaq_f32(to, vcvtq_f32_s32(sums.of(r, v)), vmulq_n_f32(d, load<float>(x + 32 * R + 4 * r)));
                    if constexpr (HAS_MINS) {
                        to = vfmaq_n_f32(to, scales_at(b.m, V0 + v), load<float>(x + 36 * R + 4 * r));
                    }
                }
            }
        });
    }
};

// ---- blocks of 256 in parts, each with a scale

// Vector j of SixBits, less an offset.
template <int J> inline PYLLAMA_SPEC_INLINE int8x16_t six(uint8x16_t low, uint8x16_t high, int offset = 0) {
    const uint8x16_t nibbles = J % 2 ? vshrq_n_u8(low, 4) : vandq_u8(low, vdupq_n_u8(15));
    return vreinterpretq_s8_u8(vsubq_u8(joined(nibbles, moved<2 * J, 4>(high), 48), vdupq_n_u8((uint8_t) offset)));
}

// The scales and minima of a block's parts.
struct Scales {
    int8_t of[16][HEIGHT], mins[16][HEIGHT];

    template <int BITS> inline PYLLAMA_SPEC_INLINE explicit Scales(const SuperWithMins<BITS, HEIGHT> & b) {
        for (int s = 0; s < 4; ++s) {
            const uint8x16_t low = bytes(b.scales.low[0] + 16 * s), high = bytes(b.scales.high + 16 * s);
            vst1q_s8(of[s], six<0>(low, high));
            vst1q_s8(of[s + 4], six<1>(low, high));
        }
        for (int i = 0; i < 2; ++i) {
            const uint8x16x2_t low = vld2q_u8(b.scales.low[1] + 32 * i), high = vld2q_u8(b.scales.high + 32 * i);
            for (int s = 0; s < 2; ++s) {
                vst1q_s8(mins[2 * i + s], six<2>(low.val[s], high.val[s]));
                vst1q_s8(mins[2 * i + s + 4], six<3>(low.val[s], high.val[s]));
            }
        }
    }

    inline PYLLAMA_SPEC_INLINE explicit Scales(const SuperOfTwoBits<HEIGHT> & b) {
        for (int s = 0; s < 16; s += 2) {
            const uint8x16x2_t pair = vld2q_u8(b.scales + 16 * s);
            for (int i = 0; i < 2; ++i) {
                vst1q_s8(of[s + i], vreinterpretq_s8_u8(vandq_u8(bytes(b.scales + 16 * (s + i)), vdupq_n_u8(15))));
                vst1q_s8(mins[s + i], vreinterpretq_s8_u8(vshrq_n_u8(pair.val[i], 4)));
            }
        }
    }

    inline PYLLAMA_SPEC_INLINE explicit Scales(const SuperOfThreeBits<HEIGHT> & b) {
        for (int s = 0; s < 4; ++s) {
            const uint8x16_t high = bytes(b.scales.high + 16 * s);
            times<4>([&](auto j) PYLLAMA_SPEC_INLINE {
                vst1q_s8(of[s + 4 * j()], six<j()>(bytes(b.scales.low[j() / 2] + 16 * s), high, 32));
            });
        }
    }

    template <int BITS, int PARTS> inline PYLLAMA_SPEC_INLINE explicit Scales(const SuperWithScales<BITS, PARTS, HEIGHT> & b) {
        for (int s = 0; s < PARTS; ++s) {  // those of IQ4_XS have an offset
            vst1q_s8(of[s], vsubq_s8(vld1q_s8(b.scales + 16 * s), vdupq_n_s8(BITS == 4 ? 32 : 0)));
        }
    }
};

template <class B, int PART, bool HAS_STARTS, bool HAS_MINS, class Of = AsTheyAre> struct TileOf256 {
    using Block = B;
    static constexpr int    N_PARTS = 256 / PART;
    static constexpr int    MOST_IN_TWOS = 4;
    static constexpr size_t N_X_BYTES = n_x_bytes_of_256<PART, HAS_STARTS, HAS_MINS>();

    template <int R, int V>
    static inline PYLLAMA_SPEC_INLINE void add(const B & b, const char * x, float32x4_t (&out)[R][4]) {
        constexpr int N_PART = R * (PART + (HAS_STARTS ? 4 : 0));
        const char * const sums_of_parts = x + N_PARTS * N_PART, * const d_of_rows = x + R * (N_X_BYTES - 4);
        const Scales scales(b);
        for (int v0 = 0; v0 < 4; v0 += V) {
            int32x4_t whole[R][V] = {}, least[R][V] = {};
            const auto scale = [&](const Sums<R, V> & sums, int s) PYLLAMA_SPEC_INLINE {
                for (int v = 0; v < V; ++v) {
                    const int32x4_t by = vmovl_s16(scales_at(scales.of[s], v0 + v));
                    for (int r = 0; r < R; ++r) {
                        whole[r][v] = vmlaq_s32(whole[r][v], sums.of(r, v), by);
                    }
                }
            };
            for (int p = 0; p < 8; ++p) {
                if constexpr (PART == 32) {
                    const char * part = x + N_PART * p;
                    Sums<R, V> sums(nullptr);
                    add_half<Of, PART, 0>(sums, b.q[p], v0, part);
                    add_half<Of, PART, 1>(sums, b.q[p], v0, part);
                    scale(sums, p);
                } else {
                    times<2>([&](auto half) PYLLAMA_SPEC_INLINE {
                        const char * part = x + N_PART * (2 * p + half());
                        Sums<R, V> sums(HAS_STARTS ? part + PART * R : nullptr);
                        add_half<Of, PART, half()>(sums, b.q[p], v0, part);
                        scale(sums, 2 * p + half());
                    });
                }
            }
            for (int i = 0; i < (HAS_MINS ? N_PARTS / 2 : 0); ++i) {
                for (int r = 0; r < R; ++r) {
                    const int16x4_t two = vreinterpret_s16_s32(vdup_n_s32(load<int32_t>(sums_of_parts + 4 * (i * R + r))));
                    for (int v = 0; v < V; ++v) {
                        least[r][v] = vmlal_lane_s16(least[r][v], scales_at(scales.mins[2 * i], v0 + v), two, 0);
                        least[r][v] = vmlal_lane_s16(least[r][v], scales_at(scales.mins[2 * i + 1], v0 + v), two, 1);
                    }
                }
            }
            for (int v = 0; v < V; ++v) {
                const float32x4_t d = scales_at(b.d, v0 + v);
                for (int r = 0; r < R; ++r) {
                    float32x4_t sum = vmulq_f32(vcvtq_f32_s32(whole[r][v]), d);
                    if constexpr (HAS_MINS) {
                        sum = vfmsq_f32(sum, vcvtq_f32_s32(least[r][v]), scales_at(b.dmin, v0 + v));
                    }
                    out[r][v0 + v] = vfmaq_n_f32(out[r][v0 + v], sum, load<float>(d_of_rows + 4 * r));
                }
            }
        }
    }
};

template <class T, int R> void tile(const Panel & panel) {
    // Vectors of weight rows at a time, so that the integer sums fit the 32 registers.
    constexpr int V = R == 1 ? 4 : R <= T::MOST_IN_TWOS ? 2 : 1;
    const typename T::Block * block = (const typename T::Block *) panel.weights;
    for (int64_t i = 0; i < panel.n_out; i += HEIGHT) {
        float32x4_t out[R][4];
        for (int r = 0; r < R; ++r) {
            for (int v = 0; v < 4; ++v) {
                out[r][v] = panel.is_first ? vdupq_n_f32(0) : vld1q_f32(panel.out[r] + i + 4 * v);
            }
        }
        const char * x = panel.x;
        for (int64_t b = 0; b < panel.n_blocks; ++b, ++block, x += R * T::N_X_BYTES) {
            T::template add<R, V>(*block, x, out);
        }
        for (int r = 0; r < R; ++r) {
            for (int v = 0; v < 4; ++v) {
                vst1q_f32(panel.out[r] + i + 4 * v, out[r][v]);
            }
        }
    }
}

// C: the codec, T: the tile.
template <class C, class T, int FLIP = 0> const RepackedKernel * kernel(decltype(RepackedKernel::fill) fill) {
    using P = Repacking<C, HEIGHT, FLIP>;
    static_assert(std::is_same_v<typename P::To, typename T::Block>);
    static const RepackedKernel kernel = { HEIGHT, MAX_TILE, P::LENGTH, sizeof(typename P::To), sizeof(typename P::From),
        T::N_X_BYTES, P::pack, P::unpack, nullptr, fill,
        { tile<T, 1>, tile<T, 2>, tile<T, 3>, tile<T, 4>, tile<T, 5>, tile<T, 6>, tile<T, 7>, tile<T, 8> } };
    return &kernel;
}

template <int BITS> using Block32 = BlockOf32<BITS, HEIGHT>;
template <int BITS> using BlockMin = BlockWithMin<BITS, HEIGHT>;
template <int BITS> using Mins = TileOf256<SuperWithMins<BITS, HEIGHT>, 32, false, true>;

}  // namespace

const RepackedKernel * repacked_kernel_of(ggml_type type) {
    switch (type) {
        case GGML_TYPE_Q8_0:   return kernel<OfBytes, TileOf32<Block32<8>>>(fill_32<block_q8_0, false, 0>);
        case GGML_TYPE_Q5_0:   return kernel<Of32<block_q5_0, 5>, TileOf32<Block32<5>>>(fill_32<block_q8_0, false, 16>);
        case GGML_TYPE_Q4_0:   return kernel<Of32<block_q4_0, 4>, TileOf32<Block32<4>>>(fill_32<block_q8_0, false, 8>);
        case GGML_TYPE_IQ4_NL: return kernel<Of32<block_iq4_nl, 4>, TileOf32<Block32<4>, Iq4>>(fill_32<block_q8_0, false, 0>);
        case GGML_TYPE_MXFP4:
            return kernel<OfPowers, TileOf32<BlockOfPowers<HEIGHT>, Mxfp4>>(fill_32<block_q8_0, false, 0>);
        case GGML_TYPE_Q4_1:
            return kernel<Of32WithMin<block_q4_1, 4>, TileOf32<BlockMin<4>, AsTheyAre, true>>(fill_32<block_q8_1, true, 0>);
        case GGML_TYPE_Q5_1:
            return kernel<Of32WithMin<block_q5_1, 5>, TileOf32<BlockMin<5>, AsTheyAre, true>>(fill_32<block_q8_1, true, 0>);
        case GGML_TYPE_Q4_K:   return kernel<OfSuperWithMins<block_q4_K, 4>, Mins<4>>(fill_256<32, false, true, 0>);
        case GGML_TYPE_Q5_K:   return kernel<OfSuperWithMins<block_q5_K, 5>, Mins<5>>(fill_256<32, false, true, 0>);
        case GGML_TYPE_Q2_K:
            return kernel<OfTwoBits, TileOf256<SuperOfTwoBits<HEIGHT>, 16, false, true>>(fill_256<16, false, true, 0>);
        case GGML_TYPE_Q3_K:
            return kernel<OfThreeBits, TileOf256<SuperOfThreeBits<HEIGHT>, 16, true, false>>(fill_256<16, true, false, 4>);
        case GGML_TYPE_Q6_K:
            return kernel<OfSixBits, TileOf256<SuperWithScales<6, 16, HEIGHT>, 16, true, false>>(fill_256<16, true, false, 32>);
        case GGML_TYPE_IQ4_XS:
            return kernel<OfTable, TileOf256<SuperWithScales<4, 8, HEIGHT>, 32, false, false, Iq4>>(fill_256<32, false, false, 0>);
        default: return nullptr;
    }
}

}  // namespace pyllama_spec

#if defined(__ARM_FEATURE_MATMUL_INT8)
#define ISA "NEON-i8mm"
#elif defined(__ARM_FEATURE_DOTPROD)
#define ISA "NEON-dotprod"
#else
#define ISA "NEON"
#endif

const char * pyllama_spec_block_kernels(void) {
    return "Q8_0 " ISA ", "
        "Q5_0 " ISA ", "
        "Q5_1 " ISA ", "
        "Q4_0 " ISA ", "
        "Q4_1 " ISA ", "
        "Q6_K " ISA ", "
        "Q5_K " ISA ", "
        "Q4_K " ISA ", "
        "Q3_K " ISA ", "
        "Q2_K " ISA ", "
        "IQ4_XS " ISA ", "
        "IQ4_NL " ISA ", "
        "MXFP4 " ISA;
}

#endif
