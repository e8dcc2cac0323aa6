// Weights that are repacked at loading: 16 rows interleaved, so that a lane of a vector is a weight row.
//
// A part is 64 rows (the last one fewer, or 16 rows if there is only one panel), and a panel is about 1,024 numbers of
// each of its rows: the activations of a tile's panel stay in the first-level cache. Parts, their panels, the panels'
// groups of 16 rows and these groups' blocks follow each other, so a product reads weights strictly in order.
#pragma once

#include "blocks.h"

namespace pyllama_spec {

// A block of each of 16 rows, in as many bytes as the engine's. A vector of 64 bytes has four numbers of each row, in the
// order of the rows. Low nibbles are the numbers 4c .. 4c + 3 of a block or part of 32, high ones 16 + 4c .. 19 + 4c.
struct block_q8_0x16 {
    uint8_t   q[8][64];  // plus 128
    ggml_half d[16];
};

struct block_q4_0x16 {
    uint8_t   q[4][64];
    ggml_half d[16];
};

struct block_q5_0x16 {
    uint8_t   q[4][64];
    uint8_t   high[64];  // bit c: the fifth bit of vector c, of low nibbles and then of high ones
    ggml_half d[16];
};

// The six bits of eight scales and minima of 16 rows. Bytes 16s + row have the scales of the parts s (low nibble) and
// s + 4 (high nibble), bytes 32(s / 2) + 2row + s % 2 the minima. In `bits` are the fifth and sixth bits: in the scales'
// order of both scales, and from bit 4 on, in the minima's order, of both minima.
struct scales_x16 {
    uint8_t scales[64], mins[64], bits[64];
};

struct block_q4_Kx16 {
    ggml_half  d[16], dmin[16];
    scales_x16 scales;
    uint8_t    q[8][4][64];
};

struct block_q5_Kx16 {
    ggml_half  d[16], dmin[16];
    scales_x16 scales;
    struct {
        uint8_t q[4][64], high[64];
    } part[8];
};

struct block_q6_Kx16 {
    int8_t    scales[16][16];  // [part][row]
    ggml_half d[16];
    struct {
        uint8_t low[4][64];   // nibbles of 32 numbers
        uint8_t high[2][64];  // of each 16 numbers: two bits for each of their four vectors
    } pair[8];
};

// Activations of R rows lie side by side, block by block:
//   of 32 numbers: q[R][32], d[R], start[R] (the integer sum's initial value: it subtracts what the weights' offset adds)
//   of 256 for Q4_K and Q5_K: q[8][R][32], the sums of its parts in pairs as [4][R][2] of 16 bits, d[R]
//   of 256 for Q6_K: 16 times q[R][16], start[R]; then d[R]

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
    int    length;      // numbers of a block
    size_t n_bytes;     // of a block of 16 rows
    size_t n_x_bytes;   // of a block of an activation row
    void (*pack)(const char * from, size_t stride, char * to);    // 16 rows' blocks
    void (*unpack)(const char * from, char * to, size_t stride);
    void (*quantize)(const float * from, void * to, int64_t n_k);  // NULL: the engine's
    void (*fill)(const char * row, int64_t n_blocks, char * to, int width, int row_of_tile);
    void (*tiles[MAX_TILE])(const Panel & panel);
};

// NULL if there is no such kernel for this type or processor.
const RepackedKernel * repacked_kernel_of(ggml_type type);

}  // namespace pyllama_spec
