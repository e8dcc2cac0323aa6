// Which of two scores is taken first where the best of a row are chosen (ggml_top_k): the higher one, and of equal ones
// the one that stands first.
//
// The indexers of GLM-5-Next and Qwen4-Exp choose among the pools of all sequences, of which a token sees its own, and
// they add up what is above zero, so that scores are often equal. A partial sort takes of equal ones what the rest of
// the row leaves in its heap: a text then depended on the sequences beside it. By their index a sequence's own pools
// stand in the order of their positions, whatever lies before and behind them.
#pragma once

#include <cstdint>

inline bool pyllama_spec_is_taken_first(const float * scores, int32_t a, int32_t b) {
    return scores[a] > scores[b] || (scores[a] == scores[b] && a < b);
}
