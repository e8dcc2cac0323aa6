// The engine copies what lies on a device from and to a saved state in destructors, which no exception may leave: what
// they fail with is kept until the call that made them is done.
#pragma once

#include <exception>
#include <utility>

namespace llama_spec {

inline std::exception_ptr & kept_failure() {
    static thread_local std::exception_ptr failure;
    return failure;
}

// The first failure is kept; what comes after it is not tried.
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

// What was kept, and is then no longer.
inline std::exception_ptr take_failure() {
    return std::exchange(kept_failure(), nullptr);
}

} // namespace llama_spec
