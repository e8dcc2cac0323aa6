// The engine copies between a device and a saved state in destructors, which must not throw: their exception is kept
// until the calling function ends.
#pragma once

#include "rpc/of_thread.h"

#include <exception>
#include <utility>

namespace llama_spec {

inline std::exception_ptr & kept_failure() {
    static OF_THREAD(std::exception_ptr, failure);
    return failure;
}

// Keeps the first failure and skips later copies.
template <typename F> void keep_failure(F && copy) noexcept {
    if (kept_failure()) {
        return;
    }
    try {
        copy();
    } catch (...) {
        kept_failure() = std::current_exception();
    }
}

// Returns the kept failure and clears it.
inline std::exception_ptr take_failure() {
    return std::exchange(kept_failure(), nullptr);
}

} // namespace llama_spec
