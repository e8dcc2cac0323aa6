// Weights that are repacked at loading: the rows of a group are interleaved, so that a lane of a vector is a weight row.
//
// A group has as many rows as a vector has lanes. A part is 64 rows (the last one fewer, or a group if there is only one
// panel), and a panel is about 1,024 numbers of each of its rows: the activations of a tile's panel stay in the
// first-level cache. Parts, their panels, the panels' groups and these groups' blocks follow each other, so a product
// reads weights strictly in order. A matrix whose rows do not fill its last group is padded with zeros.
#pragma once

#include "blocks.h"

namespace pyllama_spec {

// 32 numbers of BITS bits of each of N rows. A vector of 4N bytes has four numbers of each row, in the order of the rows;
// vector v is the numbers 4v .. 4v + 3. With fewer than eight bits there are, in this order, as many of these as add up to
// BITS: a plane with a bit of each of the eight vectors, two planes with two bits of each of four vectors, and four planes
// whose low nibbles are the vectors 0 .. 3, and the high ones 4 .. 7. A kernel so reads planes in their order.
template <int BITS, int N> struct Numbers {
    uint8_t planes[BITS][4 * N];
};

template <int BITS, int N> struct BlockOf32 {
    Numbers<BITS, N> q;
    ggml_half        d[N];
};

template <int BITS, int N> struct BlockWithMin {
    Numbers<BITS, N> q;
    ggml_half        d[N], m[N];
};

template <int N> struct BlockOfPowers {
    Numbers<4, N> q;
    uint8_t       e[N];
};

// Four vectors of 4N numbers of six bits: nibbles of the first two and of the others, then the fifth and sixth bits of all.
template <int N> struct SixBits {
    uint8_t low[2][4 * N], high[4 * N];
};

// Scales are [part][row], minima [pair of parts][row][part of the pair].
template <int BITS, int N> struct SuperWithMins {  // Q4_K, Q5_K
    ggml_half        d[N], dmin[N];
    SixBits<N>       scales;  // two vectors of scales, two of minima
    Numbers<BITS, N> q[8];
};

template <int N> struct SuperOfTwoBits {  // Q2_K
    ggml_half     d[N], dmin[N];
    uint8_t       scales[16 * N];  // low nibbles; minima are high ones
    Numbers<2, N> q[8];
};

template <int N> struct SuperOfThreeBits {  // Q3_K
    ggml_half     d[N];
    SixBits<N>    scales;
    Numbers<3, N> q[8];
};

template <int BITS, int PARTS, int N> struct SuperWithScales {  // Q6_K, IQ4_XS
    ggml_half        d[N];
    int8_t           scales[PARTS * N];
    Numbers<BITS, N> q[8];
};

// Activations of R rows lie side by side, block by block:
//   of 32 numbers: q[R][32], d[R], and what an offset or a minimum of the weights needs: an integer sum's initial value,
//     or the sum of the numbers times d, as [R]
//   of 256, for each part of n numbers: q[R][n], and initial values [R] where the kernel asks for them;
//     then the sums of the parts in pairs as [pair][R][2] of 16 bits, if it asks for them; then d[R]

// A panel of a part, times the R activation rows of a tile. `out`, an address for each activation row, has the sums of
// the panels before.
struct Panel {
    const char *    weights;
    int64_t         n_out, n_blocks;  // weight rows, and blocks in each
    const char *    x;
    float * const * out;
    bool            is_first;
};

constexpr int MAX_TILE = 8;  // maximum number of activation rows in a tile

struct RepackedKernel {
    int    height;      // rows of a group
    int    n_most;      // activation rows of a tile
    int    length;      // numbers of a block
    size_t n_bytes;     // of a group's block
    size_t n_from;      // of a row's block in the engine's format
    size_t n_x_bytes;   // of a block of an activation row
    void (*pack)(const char * from, size_t stride, char * to);    // a group's block
    void (*unpack)(const char * from, char * to, size_t stride);
    void (*quantize)(const float * from, void * to, int64_t n_k);  // NULL: the engine's
    void (*fill)(const char * row, int64_t n_blocks, char * to, int width, int row_of_tile);
    void (*tiles[MAX_TILE])(const Panel & panel);
};

// NULL if there is no such kernel for this type or processor.
const RepackedKernel * repacked_kernel_of(ggml_type type);

// The same for AVX-VNNI, whether this processor has it or not.
const RepackedKernel * repacked_kernel_vnni_of(ggml_type type);

}  // namespace pyllama_spec
