// Converts blocks of 16 weight rows to the layouts of repacked.h and back, and activation rows to those of its tiles.
#pragma once

#include "fill.h"
#include "repacked.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__) && defined(__BMI2__)

namespace pyllama_spec {

template <class T> void store(void * to, T x) {
    std::memcpy(to, &x, sizeof(x));
}

// ---- 32 numbers of row `row`, in four vectors of nibbles and one of fifth bits

inline void pack_nibbles(const uint8_t * numbers, int row, uint8_t (&q)[4][64]) {
    for (int c = 0; c < 4; ++c) {
        const uint32_t low = load<uint32_t>(numbers + 4 * c), high = load<uint32_t>(numbers + 16 + 4 * c);
        store(q[c] + 4 * row, (low & 0x0f0f0f0f) | (high & 0x0f0f0f0f) << 4);
    }
}

inline void unpack_nibbles(const uint8_t (&q)[4][64], int row, uint8_t * numbers) {
    for (int c = 0; c < 4; ++c) {
        const uint32_t both = load<uint32_t>(q[c] + 4 * row);
        store(numbers + 4 * c, both & 0x0f0f0f0f);
        store(numbers + 16 + 4 * c, both >> 4 & 0x0f0f0f0f);
    }
}

// bits: of the numbers 0 .. 31.
inline void pack_fifth_bits(uint32_t bits, int row, uint8_t (&high)[64]) {
    for (int j = 0; j < 4; ++j) {
        high[4 * row + j] = (uint8_t) _pext_u32(bits, 0x11111111u << j);
    }
}

inline uint32_t unpack_fifth_bits(const uint8_t (&high)[64], int row) {
    uint32_t bits = 0;
    for (int j = 0; j < 4; ++j) {
        bits |= _pdep_u32(high[4 * row + j], 0x11111111u << j);
    }
    return bits;
}

// ---- the engine's blocks of 32

struct PackQ8_0 {
    using From = block_q8_0;
    using To   = block_q8_0x16;

    static void pack(const From & from, int row, To & to) {
        to.d[row] = from.d;
        for (int c = 0; c < 8; ++c) {
            store(to.q[c] + 4 * row, load<uint32_t>(from.qs + 4 * c) ^ 0x80808080);
        }
    }

    static void unpack(const To & from, int row, From & to) {
        to.d = from.d[row];
        for (int c = 0; c < 8; ++c) {
            store(to.qs + 4 * c, load<uint32_t>(from.q[c] + 4 * row) ^ 0x80808080);
        }
    }
};

struct PackQ4_0 {
    using From = block_q4_0;
    using To   = block_q4_0x16;

    static void pack(const From & from, int row, To & to) {
        to.d[row] = from.d;
        for (int c = 0; c < 4; ++c) {
            std::memcpy(to.q[c] + 4 * row, from.qs + 4 * c, 4);
        }
    }

    static void unpack(const To & from, int row, From & to) {
        to.d = from.d[row];
        for (int c = 0; c < 4; ++c) {
            std::memcpy(to.qs + 4 * c, from.q[c] + 4 * row, 4);
        }
    }
};

struct PackQ5_0 {
    using From = block_q5_0;
    using To   = block_q5_0x16;

    static void pack(const From & from, int row, To & to) {
        to.d[row] = from.d;
        for (int c = 0; c < 4; ++c) {
            std::memcpy(to.q[c] + 4 * row, from.qs + 4 * c, 4);
        }
        pack_fifth_bits(load<uint32_t>(from.qh), row, to.high);
    }

    static void unpack(const To & from, int row, From & to) {
        to.d = from.d[row];
        for (int c = 0; c < 4; ++c) {
            std::memcpy(to.qs + 4 * c, from.q[c] + 4 * row, 4);
        }
        store(to.qh, unpack_fifth_bits(from.high, row));
    }
};

// ---- the engine's blocks of 256

// 64 nibbles from 32 bytes: the low ones first.
inline void split_nibbles(const uint8_t * from, uint8_t * numbers) {
    for (int i = 0; i < 32; ++i) {
        numbers[i]      = from[i] & 15;
        numbers[32 + i] = from[i] >> 4;
    }
}

inline void join_nibbles(const uint8_t * numbers, uint8_t * to) {
    for (int i = 0; i < 32; ++i) {
        to[i] = (uint8_t) (numbers[i] | numbers[32 + i] << 4);
    }
}

inline void pack_scales(const uint8_t * from, int row, scales_x16 & to) {
    uint64_t scales, mins;
    scales_of(from, scales, mins);
    for (int s = 0; s < 8; ++s, scales >>= 8, mins >>= 8) {
        const int i = 16 * (s % 4) + row, j = 32 * (s % 4 / 2) + 2 * row + s % 2, is_second = s / 4;
        to.scales[i] |= (uint8_t) ((scales & 15) << 4 * is_second);
        to.bits[i]   |= (uint8_t) ((scales >> 4 & 3) << 2 * is_second);
        to.mins[j]   |= (uint8_t) ((mins & 15) << 4 * is_second);
        to.bits[j]   |= (uint8_t) ((mins >> 4 & 3) << (4 + 2 * is_second));
    }
}

inline void unpack_scales(const scales_x16 & from, int row, uint8_t * to) {
    std::memset(to, 0, 12);
    for (int s = 0; s < 8; ++s) {
        const int i = 16 * (s % 4) + row, j = 32 * (s % 4 / 2) + 2 * row + s % 2, is_second = s / 4;
        const int scale = (from.scales[i] >> 4 * is_second & 15) | (from.bits[i] >> 2 * is_second & 3) << 4;
        const int least = (from.mins[j] >> 4 * is_second & 15) | (from.bits[j] >> (4 + 2 * is_second) & 3) << 4;
        if (s < 4) {
            to[s]     |= (uint8_t) scale;
            to[s + 4] |= (uint8_t) least;
        } else {
            to[s + 4] |= (uint8_t) ((scale & 15) | (least & 15) << 4);
            to[s - 4] |= (uint8_t) (scale >> 4 << 6);
            to[s]     |= (uint8_t) (least >> 4 << 6);
        }
    }
}

struct PackQ4_K {
    using From = block_q4_K;
    using To   = block_q4_Kx16;

    static void pack(const From & from, int row, To & to) {
        to.d[row]    = load<ggml_half>(&from);
        to.dmin[row] = load<ggml_half>((const char *) &from + sizeof(ggml_half));
        pack_scales(from.scales, row, to.scales);
        for (int p = 0; p < 4; ++p) {
            uint8_t numbers[64];
            split_nibbles(from.qs + 32 * p, numbers);
            pack_nibbles(numbers, row, to.q[2 * p]);
            pack_nibbles(numbers + 32, row, to.q[2 * p + 1]);
        }
    }

    static void unpack(const To & from, int row, From & to) {
        store(&to, from.d[row]);
        store((char *) &to + sizeof(ggml_half), from.dmin[row]);
        unpack_scales(from.scales, row, to.scales);
        for (int p = 0; p < 4; ++p) {
            uint8_t numbers[64];
            unpack_nibbles(from.q[2 * p], row, numbers);
            unpack_nibbles(from.q[2 * p + 1], row, numbers + 32);
            join_nibbles(numbers, to.qs + 32 * p);
        }
    }
};

struct PackQ5_K {
    using From = block_q5_K;
    using To   = block_q5_Kx16;

    static void pack(const From & from, int row, To & to) {
        to.d[row]    = load<ggml_half>(&from);
        to.dmin[row] = load<ggml_half>((const char *) &from + sizeof(ggml_half));
        pack_scales(from.scales, row, to.scales);
        for (int p = 0; p < 4; ++p) {
            uint8_t numbers[64];
            split_nibbles(from.qs + 32 * p, numbers);
            pack_nibbles(numbers, row, to.part[2 * p].q);
            pack_nibbles(numbers + 32, row, to.part[2 * p + 1].q);
        }
        const __m256i bits = _mm256_loadu_si256((const __m256i *) from.qh);
        for (int s = 0; s < 8; ++s) {  // bit s of each byte
            const __m256i at_top = _mm256_sll_epi16(bits, _mm_cvtsi32_si128(7 - s));
            pack_fifth_bits((uint32_t) _mm256_movemask_epi8(at_top), row, to.part[s].high);
        }
    }

    static void unpack(const To & from, int row, From & to) {
        store(&to, from.d[row]);
        store((char *) &to + sizeof(ggml_half), from.dmin[row]);
        unpack_scales(from.scales, row, to.scales);
        for (int p = 0; p < 4; ++p) {
            uint8_t numbers[64];
            unpack_nibbles(from.part[2 * p].q, row, numbers);
            unpack_nibbles(from.part[2 * p + 1].q, row, numbers + 32);
            join_nibbles(numbers, to.qs + 32 * p);
        }
        std::memset(to.qh, 0, sizeof(to.qh));
        for (int s = 0; s < 8; ++s) {
            const uint32_t bits = unpack_fifth_bits(from.part[s].high, row);
            for (int i = 0; i < 32; ++i) {
                to.qh[i] |= (uint8_t) ((bits >> i & 1) << s);
            }
        }
    }
};

struct PackQ6_K {
    using From = block_q6_K;
    using To   = block_q6_Kx16;

    static void pack(const From & from, int row, To & to) {
        to.d[row] = from.d;
        uint8_t numbers[256];
        for (int half = 0; half < 2; ++half) {
            const uint8_t * low = from.ql + 64 * half, * high = from.qh + 32 * half;
            uint8_t * out = numbers + 128 * half;
            for (int i = 0; i < 32; ++i) {
                out[i]      = (uint8_t) ((low[i] & 15) | (high[i] & 3) << 4);
                out[i + 32] = (uint8_t) ((low[i + 32] & 15) | (high[i] >> 2 & 3) << 4);
                out[i + 64] = (uint8_t) (low[i] >> 4 | (high[i] >> 4 & 3) << 4);
                out[i + 96] = (uint8_t) (low[i + 32] >> 4 | (high[i] >> 6) << 4);
            }
        }
        for (int p = 0; p < 8; ++p) {
            pack_nibbles(numbers + 32 * p, row, to.pair[p].low);
            for (int s = 0; s < 2; ++s) {
                uint32_t bits = 0;
                for (int c = 0; c < 4; ++c) {
                    bits |= (load<uint32_t>(numbers + 32 * p + 16 * s + 4 * c) >> 4 & 0x03030303) << 2 * c;
                }
                store(to.pair[p].high[s] + 4 * row, bits);
                to.scales[2 * p + s][row] = from.scales[2 * p + s];
            }
        }
    }

    static void unpack(const To & from, int row, From & to) {
        to.d = from.d[row];
        uint8_t numbers[256];
        for (int p = 0; p < 8; ++p) {
            unpack_nibbles(from.pair[p].low, row, numbers + 32 * p);
            for (int s = 0; s < 2; ++s) {
                const uint32_t bits = load<uint32_t>(from.pair[p].high[s] + 4 * row);
                for (int c = 0; c < 4; ++c) {
                    uint8_t * at = numbers + 32 * p + 16 * s + 4 * c;
                    store(at, load<uint32_t>(at) | (bits >> 2 * c & 0x03030303) << 4);
                }
                to.scales[2 * p + s] = from.scales[2 * p + s][row];
            }
        }
        for (int half = 0; half < 2; ++half) {
            uint8_t * low = to.ql + 64 * half, * high = to.qh + 32 * half;
            const uint8_t * in = numbers + 128 * half;
            for (int i = 0; i < 32; ++i) {
                low[i]      = (uint8_t) ((in[i] & 15) | (in[i + 64] & 15) << 4);
                low[i + 32] = (uint8_t) ((in[i + 32] & 15) | (in[i + 96] & 15) << 4);
                high[i]     = (uint8_t) (in[i] >> 4 | in[i + 32] >> 4 << 2 | in[i + 64] >> 4 << 4 | in[i + 96] >> 4 << 6);
            }
        }
    }
};

template <class P> void pack_16(const char * from, size_t stride, char * to) {
    typename P::To out = {};
    for (int row = 0; row < 16; ++row) {
        P::pack(*(const typename P::From *) (from + row * stride), row, out);
    }
    std::memcpy(to, &out, sizeof(out));
}

template <class P> void unpack_16(const char * from, char * to, size_t stride) {
    for (int row = 0; row < 16; ++row) {
        P::unpack(*(const typename P::To *) from, row, *(typename P::From *) (to + row * stride));
    }
}

// ---- activations

inline int sum_of(const int8_t * from, int n) {
    int sum = 0;
    for (int i = 0; i < n; ++i) {
        sum += from[i];
    }
    return sum;
}

template <int OFFSET> void fill_32(const char * row, int64_t n_blocks, char * to, int width, int r) {
    const block_q8_0 * from = (const block_q8_0 *) row;
    for (int64_t b = 0; b < n_blocks; ++b, to += 40 * width) {
        std::memcpy(to + 32 * r, from[b].qs, 32);
        store(to + 32 * width + 4 * r, half(from[b].d));
        store(to + 36 * width + 4 * r, -OFFSET * sum_of(from[b].qs, 32));
    }
}

inline void fill_with_mins(const char * row, int64_t n_blocks, char * to, int width, int r) {
    const block_q8_K * from = (const block_q8_K *) row;
    for (int64_t b = 0; b < n_blocks; ++b, to += 276 * width) {
        for (int s = 0; s < 8; ++s) {
            std::memcpy(to + 32 * (s * width + r), from[b].qs + 32 * s, 32);
            store(to + 256 * width + 4 * (s / 2 * width + r) + 2 * (s % 2), (int16_t) (from[b].bsums[2 * s] + from[b].bsums[2 * s + 1]));
        }
        store(to + 272 * width + 4 * r, from[b].d);
    }
}

inline void fill_q6_K(const char * row, int64_t n_blocks, char * to, int width, int r) {
    const block_q8_K * from = (const block_q8_K *) row;
    for (int64_t b = 0; b < n_blocks; ++b, to += 324 * width) {
        for (int s = 0; s < 16; ++s) {
            std::memcpy(to + 20 * width * s + 16 * r, from[b].qs + 16 * s, 16);
            store(to + 20 * width * s + 16 * width + 4 * r, -32 * (int) from[b].bsums[s]);
        }
        store(to + 320 * width + 4 * r, from[b].d);
    }
}

}  // namespace pyllama_spec

#endif
