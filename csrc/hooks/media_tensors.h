// Included before each file of the library for images and sounds, with a macro for each operation (abi/media.cmake): its
// loader takes tensors as optional with which its graphs compute, and operations do not look whether they are there.
#pragma once

#include "ggml.h"

#include <stdexcept>
#include <type_traits>

namespace llama_spec {

template <class T> void require_tensor(const T & value) {
    if constexpr (std::is_convertible_v<T, const ggml_tensor *> && !std::is_null_pointer_v<T>) {
        if (value == nullptr) {
            throw std::runtime_error("a tensor is absent");
        }
    }
}

template <class F, class... T> auto with_tensors(F operation, T... values) {
    (require_tensor(values), ...);
    return operation(values...);
}

} // namespace llama_spec

inline const char * llama_spec_name(const ggml_tensor * tensor) {
    llama_spec::require_tensor(tensor);
    return ggml_get_name(tensor);
}

#define ggml_get_name(tensor) llama_spec_name(tensor)
