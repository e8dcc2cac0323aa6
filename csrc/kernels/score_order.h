// The order of two scores when the best of a row are chosen (ggml_top_k): the higher first, and of equal ones the lower
// index first.
//
// The indexers of GLM-5-Next and Qwen4-Exp choose among the pools of all sequences, though a token sees only its own,
// and sum the parts above zero, so equal scores are frequent. Which equal score a partial sort keeps depends on the
// rest of the row: a text then depended on the sequences beside it. Ordered by index, a sequence's own pools follow
// their positions, whatever other pools come before or after.
#pragma once

#include <cstdint>

inline bool pyllama_spec_is_taken_first(const float * scores, int32_t a, int32_t b) {
    return scores[a] > scores[b] || (scores[a] == scores[b] && a < b);
}
