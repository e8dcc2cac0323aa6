// How the engine turns a pair by its position (rotate_pairs in its ops.cpp).
//
// One rounding more or less is one bit of a key, and a row has to be what it is alone. Written as products and sums, GCC
// fuses them in the vector loop and not in the loop for single pairs, and it takes that one where the result lies less
// than a vector behind what is turned: with AVX-512 the rotated keys of latent attention did for one token, and not for
// several. -ffp-contract=off is no remedy: GCC 12 fuses in this vector loop all the same. Fused by hand, both loops
// round alike. Where the processor has no such instruction, nothing is fused anywhere.
#pragma once

// a * b + c * d, with the first product exact.
inline float pyllama_spec_two_products(float a, float b, float c, float d) {
#if defined(__FP_FAST_FMAF)
    return __builtin_fmaf(a, b, c * d);
#else
    return a * b + c * d;
#endif
}
