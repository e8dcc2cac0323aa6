// Saved states of sliding-window layers that keep all positions (swa_full): all of them, and not the last window alone.
//
// A sequence that was put back then can be cut anywhere, as it could before, and its cells stand where they stood:
// sums over them are made in the same order, so that rows are equal to the bit.
#pragma once

#include <cstdint>

namespace llama_spec {

// Beside the engine's own LLAMA_STATE_SEQ_FLAGS_*.
constexpr uint32_t STATE_WHOLE_WINDOWS = 1u << 16;

inline bool saves_whole_windows(uint32_t flags) {
    return (flags & STATE_WHOLE_WINDOWS) != 0;
}

} // namespace llama_spec
