// Selects the kernel for a type of weights, by the processor that this is compiled for.
#include "blocks.h"
#include "interleaved_avx2.h"
#include "interleaved_avx512.h"
#include "repacked_avx512.h"
#include "repacking.h"
#include "repacked.h"
#include "rows.h"

#if defined(PYLLAMA_SPEC_BLOCKS_AVX2)

#if defined(PYLLAMA_SPEC_BLOCKS_AVX512)
#define ISA "AVX-512"
#else
#define ISA "AVX2"
#endif

namespace pyllama_spec {

namespace {

#if defined(PYLLAMA_SPEC_BLOCKS_AVX512)
using namespace avx512;
#else
using namespace avx2;
#endif

template <class T> const Kernel * flat() {
    static const Kernel kernel = { 1, fill<T>,
        { tile<T, 1>, tile<T, 2>, tile<T, 3>, tile<T, 4>, tile<T, 5>, tile<T, 6>, tile<T, 7>, tile<T, 8> } };
    return &kernel;
}

template <class T> const Kernel * interleaved() {
    static const Kernel kernel = { 8, fill<typename T::Flat>,
        { tile_x8<T, 1>, tile_x8<T, 2>, tile_x8<T, 3>, tile_x8<T, 4>, tile_x8<T, 5>, tile_x8<T, 6>, tile_x8<T, 7>, tile_x8<T, 8> } };
    return &kernel;
}

const Kernel * interleaved_q4_K() {
    static const Kernel kernel = { 8, fill_q4_Kx8,
        { tile_q4_Kx8<1>, tile_q4_Kx8<2>, tile_q4_Kx8<3>, tile_q4_Kx8<4>, tile_q4_Kx8<5>, tile_q4_Kx8<6>, tile_q4_Kx8<7>,
          tile_q4_Kx8<8> } };
    return &kernel;
}

}  // namespace

const Kernel * kernel_of(ggml_type type, bool is_interleaved) {
    if (is_interleaved) {
        switch (type) {
            case GGML_TYPE_Q4_0:   return interleaved<Q4_0x8>();
            case GGML_TYPE_IQ4_NL: return interleaved<Iq4Nlx8>();
            case GGML_TYPE_MXFP4:  return interleaved<Mxfp4x8>();
            case GGML_TYPE_Q4_K:   return interleaved_q4_K();
            default:               return nullptr;
        }
    }
    switch (type) {
        case GGML_TYPE_Q4_0:   return flat<Q4_0>();
        case GGML_TYPE_Q4_1:   return flat<Q4_1>();
        case GGML_TYPE_Q5_0:   return flat<Q5_0>();
        case GGML_TYPE_Q5_1:   return flat<Q5_1>();
        case GGML_TYPE_Q8_0:   return flat<Q8_0>();
        case GGML_TYPE_IQ4_NL: return flat<Iq4Nl>();
        case GGML_TYPE_MXFP4:  return flat<Mxfp4>();
        case GGML_TYPE_Q2_K:   return flat<Q2_K>();
        case GGML_TYPE_Q3_K:   return flat<Q3_K>();
        case GGML_TYPE_Q4_K:   return flat<Q4_K>();
        case GGML_TYPE_Q5_K:   return flat<Q5_K>();
        case GGML_TYPE_Q6_K:   return flat<Q6_K>();
        case GGML_TYPE_IQ4_XS: return flat<Iq4Xs>();
        default:               return nullptr;
    }
}

}  // namespace pyllama_spec

const char * pyllama_spec_block_kernels(void) {
    return "Q8_0 " ISA ", "
        "Q5_0 " ISA ", "
        "Q5_1 " ISA ", "
        "Q4_0 " ISA ", "
        "Q4_1 " ISA ", "
        "Q6_K " ISA ", "
        "Q5_K " ISA ", "
        "Q4_K " ISA ", "
        "Q3_K " ISA ", "
        "Q2_K " ISA ", "
        "IQ4_XS " ISA ", "
        "IQ4_NL " ISA ", "
        "MXFP4 " ISA;
}

#if defined(PYLLAMA_SPEC_BLOCKS_AVX512)

namespace pyllama_spec {

namespace {

template <class T, class P> const RepackedKernel * repacked(decltype(RepackedKernel::fill) fill) {
    constexpr bool IS_SUPER = T::LENGTH == QK_K;
    static_assert(sizeof(typename P::To) == 16 * sizeof(typename P::From));
    static const RepackedKernel kernel = { T::LENGTH, sizeof(typename P::To), T::N_X_BYTES, pack_16<P>, unpack_16<P>,
        IS_SUPER ? quantize_q8_K : nullptr, fill,
        { tile_x16<T, 1>, tile_x16<T, 2>, tile_x16<T, 3>, tile_x16<T, 4>, tile_x16<T, 5>, tile_x16<T, 6>, tile_x16<T, 7>,
          tile_x16<T, 8> } };
    return &kernel;
}

}  // namespace

const RepackedKernel * repacked_kernel_of(ggml_type type) {
    switch (type) {
        case GGML_TYPE_Q8_0: return repacked<Q8_0x16, PackQ8_0>(fill_32<128>);
        case GGML_TYPE_Q5_0: return repacked<Q5_0x16, PackQ5_0>(fill_32<16>);
        case GGML_TYPE_Q4_0: return repacked<Q4_0x16, PackQ4_0>(fill_32<8>);
        case GGML_TYPE_Q6_K: return repacked<Q6_Kx16, PackQ6_K>(fill_q6_K);
        case GGML_TYPE_Q5_K: return repacked<Q5_Kx16, PackQ5_K>(fill_with_mins);
        case GGML_TYPE_Q4_K: return repacked<Q4_Kx16, PackQ4_K>(fill_with_mins);
        default:             return nullptr;
    }
}

}  // namespace pyllama_spec

#endif

#else

const pyllama_spec::Kernel * pyllama_spec::kernel_of(ggml_type, bool) {
    return nullptr;
}

const char * pyllama_spec_block_kernels(void) {
    return "";
}

#endif

#if !defined(PYLLAMA_SPEC_BLOCKS_AVX512)

const pyllama_spec::RepackedKernel * pyllama_spec::repacked_kernel_of(ggml_type) {
    return nullptr;
}

#endif
