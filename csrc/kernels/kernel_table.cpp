// Selects the kernel for a type of weights, by the processor that this is compiled for.
#include "blocks_avx2.h"
#include "repacked_x86.h"
#include "rows.h"

#if defined(PYLLAMA_SPEC_BLOCKS_AVX2)

#if defined(__GNUC__)
#include <cpuid.h>
#endif

namespace pyllama_spec {

namespace {

#if defined(PYLLAMA_SPEC_BLOCKS_AVX512)
#define ISA "AVX-512"
using Vectors = Avx512;
#else
#define ISA "AVX2"
using Vectors = Twice<Avx2<false>>;
#endif

// Whether the wider of two sets of kernels for 256 bits is there, in this file and in the processor.
bool has_vnni() {
    static const bool has = [] {
#if defined(__GNUC__)
        unsigned a = 0, b = 0, c = 0, d = 0;
        return repacked_kernel_vnni_of(GGML_TYPE_Q8_0) && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
#else
        return false;
#endif
    }();
    return has;
}

template <class T> const Kernel * flat() {
    using avx2::tile;
    static const Kernel kernel = { fill<T>,
        { tile<T, 1>, tile<T, 2>, tile<T, 3>, tile<T, 4>, tile<T, 5>, tile<T, 6>, tile<T, 7>, tile<T, 8> } };
    return &kernel;
}

}  // namespace

const RepackedKernel * repacked_kernel_of(ggml_type type) {
    return has_vnni() ? repacked_kernel_vnni_of(type) : kernel_x86_of<Vectors>(type);
}

const Kernel * kernel_of(ggml_type type) {
    switch (type) {
        case GGML_TYPE_Q4_0:   return flat<avx2::Q4_0>();
        case GGML_TYPE_Q4_1:   return flat<avx2::Q4_1>();
        case GGML_TYPE_Q5_0:   return flat<avx2::Q5_0>();
        case GGML_TYPE_Q5_1:   return flat<avx2::Q5_1>();
        case GGML_TYPE_Q8_0:   return flat<avx2::Q8_0>();
        case GGML_TYPE_IQ4_NL: return flat<avx2::Iq4Nl>();
        case GGML_TYPE_MXFP4:  return flat<avx2::Mxfp4>();
        case GGML_TYPE_Q2_K:   return flat<avx2::Q2_K>();
        case GGML_TYPE_Q3_K:   return flat<avx2::Q3_K>();
        case GGML_TYPE_Q4_K:   return flat<avx2::Q4_K>();
        case GGML_TYPE_Q5_K:   return flat<avx2::Q5_K>();
        case GGML_TYPE_Q6_K:   return flat<avx2::Q6_K>();
        case GGML_TYPE_IQ4_XS: return flat<avx2::Iq4Xs>();
        default:               return nullptr;
    }
}

}  // namespace pyllama_spec

const char * pyllama_spec_block_kernels(void) {
#define NAMES(isa) "Q8_0 " isa ", Q5_0 " isa ", Q5_1 " isa ", Q4_0 " isa ", Q4_1 " isa ", Q6_K " isa ", Q5_K " isa ", Q4_K " isa \
    ", Q3_K " isa ", Q2_K " isa ", IQ4_XS " isa ", IQ4_NL " isa ", MXFP4 " isa
    return pyllama_spec::has_vnni() ? NAMES("AVX-VNNI") : NAMES(ISA);
}

#else

const pyllama_spec::Kernel * pyllama_spec::kernel_of(ggml_type) {
    return nullptr;
}

#if !defined(__aarch64__)  // it has repacked_neon.cpp

const pyllama_spec::RepackedKernel * pyllama_spec::repacked_kernel_of(ggml_type) {
    return nullptr;
}

const char * pyllama_spec_block_kernels(void) {
    return "";
}

#endif

#endif
