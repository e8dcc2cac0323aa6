// Included before each file of the engine's library for images and sounds: its loader takes tensors as optional with which its
// graphs compute, and these operations read what they are given without a look at whether it is there.
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

template <class F, class... T> auto with_tensors(F operation, ggml_context * ctx, const T &... values) {
    (require_tensor(values), ...);
    return operation(ctx, values...);
}

} // namespace llama_spec

inline const char * llama_spec_name(const ggml_tensor * tensor) {
    llama_spec::require_tensor(tensor);
    return ggml_get_name(tensor);
}

#define ggml_get_name(tensor)         llama_spec_name(tensor)
#define LLAMA_SPEC_WITH(...) llama_spec::with_tensors(__VA_ARGS__)

#define ggml_cast(...) LLAMA_SPEC_WITH(ggml_cast, __VA_ARGS__)
#define ggml_clamp(...) LLAMA_SPEC_WITH(ggml_clamp, __VA_ARGS__)
#define ggml_concat(...) LLAMA_SPEC_WITH(ggml_concat, __VA_ARGS__)
#define ggml_cont(...) LLAMA_SPEC_WITH(ggml_cont, __VA_ARGS__)
#define ggml_cont_2d(...) LLAMA_SPEC_WITH(ggml_cont_2d, __VA_ARGS__)
#define ggml_cont_3d(...) LLAMA_SPEC_WITH(ggml_cont_3d, __VA_ARGS__)
#define ggml_cont_4d(...) LLAMA_SPEC_WITH(ggml_cont_4d, __VA_ARGS__)
#define ggml_conv_1d(...) LLAMA_SPEC_WITH(ggml_conv_1d, __VA_ARGS__)
#define ggml_conv_1d_dw(...) LLAMA_SPEC_WITH(ggml_conv_1d_dw, __VA_ARGS__)
#define ggml_conv_1d_ph(...) LLAMA_SPEC_WITH(ggml_conv_1d_ph, __VA_ARGS__)
#define ggml_conv_2d(...) LLAMA_SPEC_WITH(ggml_conv_2d, __VA_ARGS__)
#define ggml_conv_2d_direct(...) LLAMA_SPEC_WITH(ggml_conv_2d_direct, __VA_ARGS__)
#define ggml_conv_2d_dw(...) LLAMA_SPEC_WITH(ggml_conv_2d_dw, __VA_ARGS__)
#define ggml_conv_2d_dw_direct(...) LLAMA_SPEC_WITH(ggml_conv_2d_dw_direct, __VA_ARGS__)
#define ggml_div(...) LLAMA_SPEC_WITH(ggml_div, __VA_ARGS__)
#define ggml_gelu(...) LLAMA_SPEC_WITH(ggml_gelu, __VA_ARGS__)
#define ggml_gelu_erf(...) LLAMA_SPEC_WITH(ggml_gelu_erf, __VA_ARGS__)
#define ggml_gelu_inplace(...) LLAMA_SPEC_WITH(ggml_gelu_inplace, __VA_ARGS__)
#define ggml_gelu_quick(...) LLAMA_SPEC_WITH(ggml_gelu_quick, __VA_ARGS__)
#define ggml_geglu_erf_split(...) LLAMA_SPEC_WITH(ggml_geglu_erf_split, __VA_ARGS__)
#define ggml_geglu_quick_split(...) LLAMA_SPEC_WITH(ggml_geglu_quick_split, __VA_ARGS__)
#define ggml_geglu_split(...) LLAMA_SPEC_WITH(ggml_geglu_split, __VA_ARGS__)
#define ggml_hardsigmoid(...) LLAMA_SPEC_WITH(ggml_hardsigmoid, __VA_ARGS__)
#define ggml_hardswish(...) LLAMA_SPEC_WITH(ggml_hardswish, __VA_ARGS__)
#define ggml_im2col(...) LLAMA_SPEC_WITH(ggml_im2col, __VA_ARGS__)
#define ggml_interpolate(...) LLAMA_SPEC_WITH(ggml_interpolate, __VA_ARGS__)
#define ggml_mean(...) LLAMA_SPEC_WITH(ggml_mean, __VA_ARGS__)
#define ggml_norm(...) LLAMA_SPEC_WITH(ggml_norm, __VA_ARGS__)
#define ggml_pad(...) LLAMA_SPEC_WITH(ggml_pad, __VA_ARGS__)
#define ggml_pad_ext(...) LLAMA_SPEC_WITH(ggml_pad_ext, __VA_ARGS__)
#define ggml_permute(...) LLAMA_SPEC_WITH(ggml_permute, __VA_ARGS__)
#define ggml_pool_1d(...) LLAMA_SPEC_WITH(ggml_pool_1d, __VA_ARGS__)
#define ggml_pool_2d(...) LLAMA_SPEC_WITH(ggml_pool_2d, __VA_ARGS__)
#define ggml_relu(...) LLAMA_SPEC_WITH(ggml_relu, __VA_ARGS__)
#define ggml_relu_inplace(...) LLAMA_SPEC_WITH(ggml_relu_inplace, __VA_ARGS__)
#define ggml_repeat_4d(...) LLAMA_SPEC_WITH(ggml_repeat_4d, __VA_ARGS__)
#define ggml_reshape_1d(...) LLAMA_SPEC_WITH(ggml_reshape_1d, __VA_ARGS__)
#define ggml_reshape_2d(...) LLAMA_SPEC_WITH(ggml_reshape_2d, __VA_ARGS__)
#define ggml_reshape_3d(...) LLAMA_SPEC_WITH(ggml_reshape_3d, __VA_ARGS__)
#define ggml_reshape_4d(...) LLAMA_SPEC_WITH(ggml_reshape_4d, __VA_ARGS__)
#define ggml_rms_norm(...) LLAMA_SPEC_WITH(ggml_rms_norm, __VA_ARGS__)
#define ggml_scale(...) LLAMA_SPEC_WITH(ggml_scale, __VA_ARGS__)
#define ggml_scale_bias(...) LLAMA_SPEC_WITH(ggml_scale_bias, __VA_ARGS__)
#define ggml_sigmoid(...) LLAMA_SPEC_WITH(ggml_sigmoid, __VA_ARGS__)
#define ggml_silu(...) LLAMA_SPEC_WITH(ggml_silu, __VA_ARGS__)
#define ggml_soft_max(...) LLAMA_SPEC_WITH(ggml_soft_max, __VA_ARGS__)
#define ggml_sqr(...) LLAMA_SPEC_WITH(ggml_sqr, __VA_ARGS__)
#define ggml_sqrt(...) LLAMA_SPEC_WITH(ggml_sqrt, __VA_ARGS__)
#define ggml_sub(...) LLAMA_SPEC_WITH(ggml_sub, __VA_ARGS__)
#define ggml_sum(...) LLAMA_SPEC_WITH(ggml_sum, __VA_ARGS__)
#define ggml_sum_rows(...) LLAMA_SPEC_WITH(ggml_sum_rows, __VA_ARGS__)
#define ggml_swiglu_clamp(...) LLAMA_SPEC_WITH(ggml_swiglu_clamp, __VA_ARGS__)
#define ggml_swiglu_split(...) LLAMA_SPEC_WITH(ggml_swiglu_split, __VA_ARGS__)
#define ggml_swiglu_swapped(...) LLAMA_SPEC_WITH(ggml_swiglu_swapped, __VA_ARGS__)
#define ggml_tanh(...) LLAMA_SPEC_WITH(ggml_tanh, __VA_ARGS__)
#define ggml_transpose(...) LLAMA_SPEC_WITH(ggml_transpose, __VA_ARGS__)
#define ggml_upscale(...) LLAMA_SPEC_WITH(ggml_upscale, __VA_ARGS__)
#define ggml_view_1d(...) LLAMA_SPEC_WITH(ggml_view_1d, __VA_ARGS__)
#define ggml_view_2d(...) LLAMA_SPEC_WITH(ggml_view_2d, __VA_ARGS__)
#define ggml_view_3d(...) LLAMA_SPEC_WITH(ggml_view_3d, __VA_ARGS__)
#define ggml_view_4d(...) LLAMA_SPEC_WITH(ggml_view_4d, __VA_ARGS__)
