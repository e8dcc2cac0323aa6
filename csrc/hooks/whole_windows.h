// Saved states of sliding-window layers that keep all positions (swa_full): they contain all positions, not only the
// last window.
//
// A restored sequence can then be cut anywhere, as before, and its cells have their old places: sums over them have the
// same order, so rows are equal to the bit.
#pragma once

#include <cstdint>

namespace llama_spec {

// Used beside the engine's own LLAMA_STATE_SEQ_FLAGS_*.
constexpr uint32_t STATE_WHOLE_WINDOWS = 1u << 16;

inline bool saves_whole_windows(uint32_t flags) {
    return (flags & STATE_WHOLE_WINDOWS) != 0;
}

} // namespace llama_spec
