// Products of quantised weights: our kernels' activation format, and the engine's layouts.
//
// A group is 256 numbers of a row, and a block is 32 of them. The kernels take the weights of a group as four vectors
// of 64 unsigned bytes: vector c holds the eight numbers 8c .. 8c + 7 of each block, block after block. So in all four
// vectors, the 32-bit lane i belongs to block i / 2, and products can be summed as integers before any scale is
// applied. If 16 weights have their own scale, AVX-512 takes the numbers 4c .. 4c + 3 of each 16 (LANE of a kernel).
#pragma once

#include "tiles.h"

#define GGML_COMMON_DECL_CPP
#include "ggml-common.h"

#include <cstdint>

namespace pyllama_spec {

constexpr int64_t GROUP       = 256;
constexpr int     MAX_COLUMNS = 8;   // maximum number of activation rows in a tile of quantised weights
constexpr int     FEW_ROWS    = 32;  // maximum width of a batch whose rows equal single rows

// A group of an activation row.
struct alignas(64) Group {
    int8_t q[4][64];
    float  d[16];  // the scale of each lane
    union {
        int32_t start[2][16];  // initial values of the integer sums: they subtract what an offset of the weights adds
        float   sums[2][16];   // sums of the numbers in each lane, for weights with a minimum
        int16_t pairs[4][2];   // sums of the numbers in each block, for interleaved weights with a minimum
    };
};

// Weight rows times activation rows. A result depends only on its weight row and its activation row.
struct Job {
    const char *  weights;
    size_t        stride;  // bytes from row to row, or from eight interleaved rows to the next
    int64_t       n_k, n_groups;
    const Group * x;       // [rows, n_groups]
    float **      out;     // [rows]: the address of the first weight row's result
    bool          is_cached = false;  // another tile has just used these weights
};

using Tile = void (*)(const Job & job, int64_t begin, int64_t end, int row);

// The functions that multiply one layout of weights.
struct Kernel {
    int  height;  // number of interleaved weight rows; a chunk's size is a multiple of it
    void (*fill)(const char * row, int64_t n_k, Group * out);
    Tile tiles[MAX_COLUMNS];  // for 1 .. MAX_COLUMNS activation rows
};

// The engine's layouts of eight interleaved rows: 8 bytes of each row in turn.
struct block_q4_0x8 {
    ggml_half d[8];
    uint8_t   qs[QK4_0 * 4];  // as signed nibbles
};

struct block_iq4_nlx8 {
    ggml_half d[8];
    uint8_t   qs[QK4_NL * 4];
};

struct block_mxfp4x8 {
    uint8_t e[8];
    uint8_t qs[QK_MXFP4 * 4];
};

struct block_q4_Kx8 {
    ggml_half d[8], dmin[8];
    uint8_t   scales[8][12];  // for each block of 32, the scales and minima of the eight rows, packed as in Q4_K
    uint8_t   qs[QK_K * 4];
};

// NULL if there is no kernel for this type or processor.
const Kernel * kernel_of(ggml_type type, bool is_interleaved);

}  // namespace pyllama_spec
