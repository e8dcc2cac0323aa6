// Random numbers, and rows as products take them, for programs that test kernels.
#pragma once

#include "ggml-cpu.h"
#include "ggml.h"

#include <cstring>
#include <random>
#include <vector>

inline std::vector<float> draw(size_t n, unsigned seed) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal;
    std::vector<float> out(n);
    for (float & x : out) {
        x = normal(generator);
    }
    return out;
}

inline float half(const char * from) {
    ggml_fp16_t x;
    std::memcpy(&x, from, sizeof(x));
    return ggml_fp16_to_fp32(x);
}

// The engine has no way back from Q8_1 and Q8_K, since nothing is stored in these.
inline void unpack_row(ggml_type type, const char * from, float * out, int64_t n_k) {
    const size_t n_block = ggml_blck_size(type), n_bytes = ggml_type_size(type);
    if (type != GGML_TYPE_Q8_1 && type != GGML_TYPE_Q8_K) {
        return ggml_get_type_traits(type)->to_float(from, out, n_k);
    }
    for (int64_t i = 0; i < n_k; ++i) {
        const char * block = from + i / n_block * n_bytes;
        float d = type == GGML_TYPE_Q8_1 ? half(block) : 0;
        if (type == GGML_TYPE_Q8_K) {
            std::memcpy(&d, block, sizeof(d));
        }
        out[i] = d * (signed char) block[4 + i % n_block];
    }
}
