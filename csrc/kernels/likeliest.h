// The likeliest tokens of a row of logits, in two passes over it: a draft asks for each token of it, over 50,000 to 260,000
// ids. Compiled with the CPU backend's own flags, so that all lanes of the processor compute.
#pragma once

#include <cstdint>

namespace pyllama_spec {

constexpr int32_t MAX_LIKELIEST = 2;

// At most n_max (up to MAX_LIKELIEST) of n ids, likeliest first, with their probabilities among all n; of equal ones the
// first comes first. counterparts: NULL, or [n], and ids whose entry is negative are not chosen. Returns how many there are.
// NaN anywhere makes all probabilities NaN.
int32_t likeliest(const float * logits, int32_t n, const int32_t * counterparts, int32_t n_max, int32_t * ids,
                  float * probabilities);

} // namespace pyllama_spec
