// The engine's rotation of a pair by its position (rotate_pairs in its ops.cpp).
//
// One rounding more or less changes a bit of a key, and a row in a batch must equal the row alone. For an expression of
// products and sums, GCC fuses operations in the vector loop but not in the scalar loop. It takes the scalar loop if
// the result lies less than a vector after the input. With AVX-512, that happened to the rotated keys of latent
// attention for one token, but not for several. -ffp-contract=off does not help: GCC 12 still fuses in this vector
// loop. With explicitly fused operations both loops round alike. On a processor without such an instruction, neither
// loop fuses.
#pragma once

// a * b + c * d, where the first product is exact.
inline float pyllama_spec_two_products(float a, float b, float c, float d) {
#if defined(__FP_FAST_FMAF)
    return __builtin_fmaf(a, b, c * d);
#else
    return a * b + c * d;
#endif
}
