// Finds the likeliest tokens of a row of logits in two passes: a draft needs this for each of its tokens, over 50,000
// to 260,000 ids. Compiled with the CPU backend's own flags, to use all of the processor's vector lanes.
#pragma once

#include <cstdint>

namespace pyllama_spec {

constexpr int32_t MAX_LIKELIEST = 2;

// Writes at most n_max (up to MAX_LIKELIEST) of n ids, likeliest first, with their probabilities among all n; of equal
// ones the lower id comes first. counterparts: NULL, or [n]; ids with a negative entry are not chosen. Returns how many
// there are. NaN anywhere makes all probabilities NaN.
int32_t likeliest(const float * logits, int32_t n, const int32_t * counterparts, int32_t n_max, int32_t * ids,
                  float * probabilities);

} // namespace pyllama_spec
