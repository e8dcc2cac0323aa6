// Converts blocks of a group of weight rows to the layouts of repacked.h and back, and activation rows to those of its tiles.
//
// A type's codec lists once which bits of the engine's block are which numbers, scales and fields. Pack and Unpack copy
// along this list, one way or the other; what they copy to is zero before.
#pragma once

#include "repacked.h"

#include "simd-mappings.h"

#include <cstring>

namespace pyllama_spec {

namespace {  // each file that includes this has other instructions

template <class T> void store(void * to, T x) {
    std::memcpy(to, &x, sizeof(x));
}

struct Pack {
    static void copy_bits(const uint8_t & from, int from_bit, uint8_t & to, int to_bit, int n_bits) {
        to |= (uint8_t) ((from >> from_bit & ((1 << n_bits) - 1)) << to_bit);
    }

    template <class T> static void copy(const T & from, T & to) {
        to = from;
    }
};

struct Unpack {
    static void copy_bits(uint8_t & to, int to_bit, const uint8_t & from, int from_bit, int n_bits) {
        Pack::copy_bits(from, from_bit, to, to_bit, n_bits);
    }

    template <class T> static void copy(T & to, const T & from) {
        to = from;
    }
};

// The same bits of n bytes.
template <class Way, class A, class B> void bits(A * a, int a_bit, B * b, int b_bit, int n_bits, int n) {
#pragma GCC unroll 1  // otherwise GCC unrolls it, and then packs byte by byte
    for (int i = 0; i < n; ++i) {
        Way::copy_bits(a[i], a_bit, b[i], b_bit, n_bits);
    }
}

// Fields of n_bits of n bytes: the lowest of all, then the next ones, and so on; to the bits from `bit` on of numbers.
template <class Way, int N_BITS, class A, class B> void fields(A * a, int n, B * numbers, int bit = 0) {
    for (int i = 0; i < 8 / N_BITS; ++i) {
        bits<Way>(a, N_BITS * i, numbers + n * i, bit, N_BITS, n);
    }
}

// Byte i of vector j of SixBits.
template <class Way, class A, class B> void six_bits(A & a, B & to, int j, int i) {
    Way::copy_bits(a, 0, to.low[j / 2][i], 4 * (j % 2), 4);
    Way::copy_bits(a, 4, to.high[i], 2 * j, 2);
}

inline constexpr int in_pairs(int part, int row, int n) {
    return 2 * n * (part / 2) + 2 * row + part % 2;
}

// ---- codecs. q: the numbers of row i of a group of N, 32 or 256.

// Bit k of the 32 belongs to number k.
template <class Way, class F, class Q> void fifth_bits(F & from, Q * q) {
    uint32_t word = 0;
    if constexpr (std::is_same_v<Way, Pack>) {
        std::memcpy(&word, from.qh, 4);
        for (int k = 0; k < 32; ++k) {
            q[k] |= (uint8_t) ((word >> k & 1) << 4);
        }
    } else {
        for (int k = 0; k < 32; ++k) {
            word |= (uint32_t) (q[k] >> 4 & 1) << k;
        }
        std::memcpy(from.qh, &word, 4);
    }
}

template <class B, int BITS> struct Of32 {
    using From = B;
    template <int N> using To = BlockOf32<BITS, N>;

    template <class Way, int N, class F, class Q, class T> static void copy(F & from, Q * q, T & to, int i) {
        Way::copy(from.d, to.d[i]);
        if constexpr (BITS == 5) {
            fifth_bits<Way>(from, q);  // first: reading what two stores wrote has to wait
        }
        fields<Way, 4>(from.qs, 16, q);
    }
};

struct OfBytes {
    using From = block_q8_0;
    template <int N> using To = BlockOf32<8, N>;

    template <class Way, int N, class F, class Q, class T> static void copy(F & from, Q * q, T & to, int i) {
        Way::copy(from.d, to.d[i]);
        bits<Way>((std::conditional_t<std::is_const_v<F>, const uint8_t, uint8_t> *) from.qs, 0, q, 0, 8, 32);
    }
};

template <class B, int BITS> struct Of32WithMin {
    using From = B;
    template <int N> using To = BlockWithMin<BITS, N>;

    template <class Way, int N, class F, class Q, class T> static void copy(F & from, Q * q, T & to, int i) {
        Way::copy(from.data.data.d, to.d[i]);
        Way::copy(from.data.data.m, to.m[i]);
        if constexpr (BITS == 5) {
            fifth_bits<Way>(from, q);  // first: reading what two stores wrote has to wait
        }
        fields<Way, 4>(from.qs, 16, q);
    }
};

struct OfPowers {
    using From = block_mxfp4;
    template <int N> using To = BlockOfPowers<N>;

    template <class Way, int N, class F, class Q, class T> static void copy(F & from, Q * q, T & to, int i) {
        Way::copy(from.e, to.e[i]);
        fields<Way, 4>(from.qs, 16, q);
    }
};

template <class B, int BITS> struct OfSuperWithMins {
    using From = B;
    template <int N> using To = SuperWithMins<BITS, N>;

    // Scale (j = 0) or minimum (1) of part s, in the two vectors of each.
    template <class Way, int N, class F, class T> static void copy_scale(F * from, T & to, int j, int s, int i) {
        const int at = j ? in_pairs(s % 4, i, N) : N * (s % 4) + i, vector = 2 * j + s / 4;
        uint8_t & low = (uint8_t &) to.low[vector / 2][at], & high = (uint8_t &) to.high[at];
        const int low_bit = 4 * (vector % 2), high_bit = 2 * vector;
        if (s < 4) {
            Way::copy_bits(from[s + 4 * j], 0, low, low_bit, 4);
            Way::copy_bits(from[s + 4 * j], 4, high, high_bit, 2);
        } else {
            Way::copy_bits(from[s + 4], 4 * j, low, low_bit, 4);
            Way::copy_bits(from[s - 4 + 4 * j], 6, high, high_bit, 2);
        }
    }

    template <class Way, int N, class F, class Q, class T> static void copy(F & from, Q * q, T & to, int i) {
        Way::copy(from.data.data.d, to.d[i]);
        Way::copy(from.data.data.dmin, to.dmin[i]);
        for (int j = 0; j < 2; ++j) {
            for (int s = 0; s < 8; ++s) {
                copy_scale<Way, N>(from.scales, to.scales, j, s, i);
            }
        }
        for (int p = 0; p < 4; ++p) {
            fields<Way, 4>(from.qs + 32 * p, 32, q + 64 * p);
        }
        if constexpr (BITS == 5) {
            fields<Way, 1>(from.qh, 32, q, 4);
        }
    }
};

struct OfTwoBits {
    using From = block_q2_K;
    template <int N> using To = SuperOfTwoBits<N>;

    template <class Way, int N, class F, class Q, class T> static void copy(F & from, Q * q, T & to, int i) {
        Way::copy(from.data.data.d, to.d[i]);
        Way::copy(from.data.data.dmin, to.dmin[i]);
        for (int s = 0; s < 16; ++s) {
            Way::copy_bits(from.scales[s], 0, to.scales[N * s + i], 0, 4);
            Way::copy_bits(from.scales[s], 4, to.scales[in_pairs(s, i, N)], 4, 4);
        }
        fields<Way, 2>(from.qs, 32, q);
        fields<Way, 2>(from.qs + 32, 32, q + 128);
    }
};

struct OfThreeBits {
    using From = block_q3_K;
    template <int N> using To = SuperOfThreeBits<N>;

    template <class Way, int N, class F, class Q, class T> static void copy(F & from, Q * q, T & to, int i) {
        Way::copy(from.d, to.d[i]);
        for (int s = 0; s < 16; ++s) {
            const int at = N * (s % 4) + i, vector = s / 4;
            Way::copy_bits(from.scales[s % 8], 4 * (s / 8), to.scales.low[vector / 2][at], 4 * (vector % 2), 4);
            Way::copy_bits(from.scales[8 + s % 4], 2 * vector, to.scales.high[at], 2 * vector, 2);
        }
        fields<Way, 2>(from.qs, 32, q);
        fields<Way, 2>(from.qs + 32, 32, q + 128);
        fields<Way, 1>(from.hmask, 32, q, 2);
    }
};

struct OfSixBits {
    using From = block_q6_K;
    template <int N> using To = SuperWithScales<6, 16, N>;

    template <class Way, int N, class F, class Q, class T> static void copy(F & from, Q * q, T & to, int i) {
        Way::copy(from.d, to.d[i]);
        for (int s = 0; s < 16; ++s) {
            Way::copy(from.scales[s], to.scales[N * s + i]);
        }
        for (int h = 0; h < 2; ++h) {
            fields<Way, 4>(from.ql + 64 * h, 64, q + 128 * h);
            fields<Way, 2>(from.qh + 32 * h, 32, q + 128 * h, 4);
        }
    }
};

struct OfTable {
    using From = block_iq4_xs;
    template <int N> using To = SuperWithScales<4, 8, N>;  // scales plus 32

    template <class Way, int N, class F, class Q, class T> static void copy(F & from, Q * q, T & to, int i) {
        Way::copy(from.d, to.d[i]);
        auto * high = (std::conditional_t<std::is_const_v<F>, const uint8_t, uint8_t> *) &from.scales_h;
        for (int s = 0; s < 8; ++s) {
            auto & scale = (std::conditional_t<std::is_const_v<T>, const uint8_t, uint8_t> &) to.scales[N * s + i];
            Way::copy_bits(from.scales_l[s / 2], 4 * (s % 2), scale, 0, 4);
            Way::copy_bits(high[s / 4], 2 * (s % 4), scale, 4, 2);
            fields<Way, 4>(from.qs + 16 * s, 16, q + 32 * s);
        }
    }
};

// ---- numbers of a group's rows to planes and back: numbers[v][row] are four of vector v.

template <class Way, int BITS, int N, class Q, class P> void copy_planes(Q (&numbers)[8][4 * N], P & to) {
    constexpr int AFTER_NIBBLES = BITS == 8 ? 0 : BITS & 4, N_AFTER = BITS & 2;
    for (int v = 0; v < 8; ++v) {
        if constexpr (BITS == 8) {
            bits<Way>(numbers[v], 0, to.planes[v], 0, 8, 4 * N);
        }
        if constexpr (AFTER_NIBBLES) {
            bits<Way>(numbers[v], 0, to.planes[BITS % 4 + v % 4], 4 * (v / 4), 4, 4 * N);
        }
        if constexpr (N_AFTER) {
            bits<Way>(numbers[v], AFTER_NIBBLES, to.planes[BITS % 2 + v / 4], 2 * (v % 4), 2, 4 * N);
        }
        if constexpr (BITS % 2) {
            bits<Way>(numbers[v], AFTER_NIBBLES + N_AFTER, to.planes[0], v, 1, 4 * N);
        }
    }
}

template <int BITS, int N> Numbers<BITS, N> & numbers_of(Numbers<BITS, N> & q, int) {
    return q;
}

template <int BITS, int N> Numbers<BITS, N> & numbers_of(Numbers<BITS, N> (&q)[8], int p) {
    return q[p];
}

template <int BITS, int N> constexpr int bits_of(const Numbers<BITS, N> &) {
    return BITS;
}

template <int BITS, int N> constexpr int bits_of(const Numbers<BITS, N> (&)[8]) {
    return BITS;
}

// FLIP: all numbers are changed by it, so that signed ones become unsigned.
template <class C, int N, int FLIP> struct Repacking {
    using From = typename C::From;
    using To   = typename C::template To<N>;

    static constexpr int BITS = bits_of(decltype(To::q){}), LENGTH = sizeof(To::q) / (4 * BITS * N) * 32;

    static void pack(const char * from, size_t stride, char * to) {
        To out = {};
        uint8_t rows[N][LENGTH] = {};
        for (int i = 0; i < N; ++i) {
            C::template copy<Pack, N>(*(const From *) (from + i * stride), rows[i], out, i);
        }
        for (int p = 0; p < LENGTH / 32; ++p) {
            uint8_t vectors[8][4 * N];
            for (int i = 0; i < N; ++i) {
                for (int v = 0; v < 8; ++v) {
                    uint32_t four;
                    std::memcpy(&four, rows[i] + 32 * p + 4 * v, 4);
                    store(vectors[v] + 4 * i, four ^ 0x01010101u * FLIP);
                }
            }
            copy_planes<Pack, BITS, N>(vectors, numbers_of(out.q, p));
        }
        std::memcpy(to, &out, sizeof(out));
    }

    static void unpack(const char * from, char * to, size_t stride) {
        To in;
        std::memcpy(&in, from, sizeof(in));
        uint8_t rows[N][LENGTH];
        for (int p = 0; p < LENGTH / 32; ++p) {
            uint8_t vectors[8][4 * N] = {};
            copy_planes<Unpack, BITS, N>(vectors, numbers_of(in.q, p));
            for (int i = 0; i < N; ++i) {
                for (int v = 0; v < 8; ++v) {
                    uint32_t four;
                    std::memcpy(&four, vectors[v] + 4 * i, 4);
                    store(rows[i] + 32 * p + 4 * v, four ^ 0x01010101u * FLIP);
                }
            }
        }
        for (int i = 0; i < N; ++i) {
            From & block = *(From *) (to + i * stride);
            std::memset((void *) &block, 0, sizeof(block));
            C::template copy<Unpack, N>(block, rows[i], in, i);
        }
    }
};

// ---- activations

// How many pairs of a tile's rows are multiplied at once, by ARM's instruction for matrices, where it pays (by llvm-mca,
// for Neoverse V2). In a part they lie together in pieces of eight numbers.
constexpr int n_pairs([[maybe_unused]] int width) {
#if defined(__ARM_FEATURE_MATMUL_INT8)
    return width == 4 || width > 5 ? width / 2 : 0;
#else
    return 0;
#endif
}

// The numbers of row r to a part of a tile.
template <int PART> void put(const int8_t * from, char * to, int width, int r) {
    if (r / 2 < n_pairs(width)) {
        for (int i = 0; i < PART; i += 8) {
            std::memcpy(to + r / 2 * 2 * PART + 2 * i + r % 2 * 8, from + i, 8);
        }
    } else {
        std::memcpy(to + PART * r, from, PART);
    }
}

template <class X, bool HAS_MINS, int OFFSET> void fill_32(const char * row, int64_t n_blocks, char * to, int width, int r) {
    const X * from = (const X *) row;
    for (int64_t b = 0; b < n_blocks; ++b, to += 40 * width) {
        ggml_half d;
        std::memcpy(&d, from + b, sizeof(d));
        int sum = 0;
        for (int i = 0; i < 32; ++i) {
            sum += from[b].qs[i];
        }
        put<32>(from[b].qs, to, width, r);
        store(to + 32 * width + 4 * r, GGML_CPU_FP16_TO_FP32(d));
        if constexpr (HAS_MINS) {
            store(to + 36 * width + 4 * r, GGML_CPU_FP16_TO_FP32(d) * (float) sum);
        } else {
            store(to + 36 * width + 4 * r, -OFFSET * sum);
        }
    }
}

template <int PART, bool HAS_STARTS, bool HAS_SUMS> constexpr int n_x_bytes_of_256() {
    return 256 + 256 / PART * ((HAS_STARTS ? 4 : 0) + (HAS_SUMS ? 2 : 0)) + 4;
}

template <int PART, bool HAS_STARTS, bool HAS_SUMS, int OFFSET>
void fill_256(const char * row, int64_t n_blocks, char * to, int width, int r) {
    constexpr int N_PARTS = 256 / PART;
    const block_q8_K * from = (const block_q8_K *) row;
    for (int64_t b = 0; b < n_blocks; ++b) {
        const auto sum_of = [&](int s) {
            return PART == 16 ? from[b].bsums[s] : from[b].bsums[2 * s] + from[b].bsums[2 * s + 1];
        };
        for (int s = 0; s < N_PARTS; ++s) {
            put<PART>(from[b].qs + PART * s, to, width, r);
            to += PART * width;
            if constexpr (HAS_STARTS) {
                store(to + 4 * r, -OFFSET * (int) sum_of(s));
                to += 4 * width;
            }
        }
        if constexpr (HAS_SUMS) {
            for (int s = 0; s < N_PARTS; ++s) {
                store(to + 4 * (s / 2 * width + r) + 2 * (s % 2), (int16_t) sum_of(s));
            }
            to += 2 * N_PARTS * width;
        }
        store(to + 4 * r, from[b].d);
        to += 4 * width;
    }
}

}  // namespace

}  // namespace pyllama_spec
