// The kernels for AVX-VNNI in an engine for AVX2: a wheel compiles this file, and no other, with its instructions, and
// kernel_table.cpp asks the processor. Results are the same.
#if defined(__AVXVNNI__) && !defined(__AVX512F__)

#include "repacked_x86.h"

const pyllama_spec::RepackedKernel * pyllama_spec::repacked_kernel_vnni_of(ggml_type type) {
    return kernel_x86_of<Twice<Avx2<true>>>(type);
}

#else

#include "repacked.h"

const pyllama_spec::RepackedKernel * pyllama_spec::repacked_kernel_vnni_of(ggml_type) {
    return nullptr;
}

#endif
