// What the products of bytes have in common: the engine's layouts.
#pragma once

#include "tiles.h"

#define GGML_COMMON_DECL_CPP
#include "ggml-common.h"

#include <cstdint>

#if defined(__F16C__)

#include <immintrin.h>

namespace pyllama_spec {

inline float to_float(ggml_half x) {
    return _cvtsh_ss(x);
}

// The engine's "8x8" layout of Q4_0: eight weight rows, 8 weights of each in turn, as signed nibbles.
struct block_q4_0x8 {
    ggml_half d[8];
    uint8_t   qs[QK4_0 * 4];
};

}  // namespace pyllama_spec

#endif
