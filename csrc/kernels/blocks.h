// Products of quantised weights as they are in the file: the kernels' activation format.
//
// A group is 256 numbers of a row, and a block is 32 of them. The kernels take the weights of a group as four vectors
// of 64 unsigned bytes: vector c holds the eight numbers 8c .. 8c + 7 of each block, block after block. So in all four
// vectors, the 32-bit lane i belongs to block i / 2, and products can be summed as integers before any scale is
// applied.
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
    };
};

// Weight rows times activation rows. A result depends only on its weight row and its activation row.
struct Job {
    const char *  weights;
    size_t        stride;  // bytes from row to row
    int64_t       n_k, n_groups;
    const Group * x;       // [rows, n_groups]
    float **      out;     // [rows]: the address of the first weight row's result
    bool          is_cached = false;  // another tile has just used these weights
};

using Tile = void (*)(const Job & job, int64_t begin, int64_t end, int row);

// The functions that multiply weights as they are in the file.
struct Kernel {
    void (*fill)(const char * row, int64_t n_k, Group * out);
    Tile tiles[MAX_COLUMNS];  // for 1 .. MAX_COLUMNS activation rows
};

// NULL if there is no kernel for this type or processor.
const Kernel * kernel_of(ggml_type type);

}  // namespace pyllama_spec
