// Products of quantised weights: activations as our kernels read them, and the engine's layouts.
//
// 256 numbers of a row are a group, and 32 of them a block. The kernels take the weights of a group as four vectors
// of 64 unsigned bytes: in vector c the eight numbers 8c .. 8c + 7 of each block, block after block. So lane i of 32
// bits belongs to block i / 2 in all four, whose products can be added up as integers before any scale is applied. Where
// 16 weights have a scale of their own, AVX-512 takes the numbers 4c .. 4c + 3 of each 16 (LANE of a kernel).
#pragma once

#include "tiles.h"

#define GGML_COMMON_DECL_CPP
#include "ggml-common.h"

#include <cstdint>

namespace pyllama_spec {

constexpr int64_t GROUP       = 256;
constexpr int     MAX_COLUMNS = 8;   // the most activation rows of a tile of quantised weights
constexpr int     FEW_ROWS    = 32;  // the widest batch whose rows are computed as single ones are

// A group of an activation row.
struct alignas(64) Group {
    int8_t q[4][64];
    float  d[16];  // the scale of each lane
    union {
        int32_t start[2][16];  // where the integer sums begin: what an offset of the weights adds, taken off
        float   sums[2][16];   // of the numbers in each lane, for weights with a minimum
        int16_t pairs[4][2];   // of the numbers in each block, for interleaved ones with a minimum
    };
};

// Weight rows times activation rows. A result depends on its two rows alone.
struct Job {
    const char *  weights;
    size_t        stride;  // bytes from row to row, or from eight interleaved rows to the next
    int64_t       n_k, n_groups;
    const Group * x;       // [rows, n_groups]
    float **      out;     // [rows]: where the first weight row's result goes
    bool          is_cached = false;  // another tile has just used these weights
};

using Tile = void (*)(const Job & job, int64_t begin, int64_t end, int row);

// How one layout of weights is multiplied.
struct Kernel {
    int  height;  // weight rows that lie interleaved; a chunk holds whole ones
    void (*fill)(const char * row, int64_t n_k, Group * out);
    Tile tiles[MAX_COLUMNS];  // of 1 .. MAX_COLUMNS activation rows
};

// The engine's layouts of eight interleaved rows: 8 bytes of each in turn.
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
    uint8_t   scales[8][12];  // for each block of 32 the scales and minima of the eight rows, packed as in Q4_K
    uint8_t   qs[QK_K * 4];
};

// NULL where there is none for this type, or for this processor.
const Kernel * kernel_of(ggml_type type, bool is_interleaved);

}  // namespace pyllama_spec
