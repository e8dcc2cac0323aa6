// Q8_0 and Q4_0 weights times the few rows of a verify batch; see rows_float.cpp for the why and the rule
// that a result depends on its weight row and its activation row alone.
#include "q8_avx2.h"
#include "q8_avx512.h"
#include "rows.h"
#include "tiles.h"

#include "ggml-cpu.h"

#include <cstdint>

#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__F16C__)
#define HAS_BYTES "Q8_0 AVX-512, Q4_0 AVX-512"
using namespace pyllama_spec::avx512;
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define HAS_BYTES "Q8_0 AVX2, Q4_0 AVX2"
using namespace pyllama_spec::avx2;
#endif

#if defined(HAS_BYTES)

namespace {

using namespace pyllama_spec;

// All weight rows by all activation rows, which are blocks of Q8_0.
void run(const Operands & op, const ggml_tensor * dst, const ggml_compute_params * params) {
    const ggml_type type = dst->src[0]->type;
    const int64_t n_out = dst->src[0]->ne[1], n_rows = dst->src[1]->ne[1];
    Packed x(scratch(params, Packed::n_bytes(op.n_k)), op.n_k);
    const bool is_one_tile = n_rows <= WIDTH;
    if (is_one_tile) {
        x.fill(op, 0, n_rows);
    }
    for_chunks(params, n_out, 1, [&](int64_t, int64_t begin0, int64_t end0) {
        for_tiles(n_rows, [&](int64_t i1, int64_t width) {
            if (!is_one_tile) {
                x.fill(op, i1, width);
            }
            for_width(width, [&](auto w) {
                if (type == GGML_TYPE_Q8_0) {
                    rows_q8_0<w()>(op, x, begin0, end0, i1);
                } else {
                    rows_q4_0x8<w()>(op, x, begin0, end0, i1);
                }
            });
        });
    });
}

bool is_flat(const ggml_tensor * weights, const ggml_tensor * rows) {
    const int64_t n_k = weights->ne[0];
    return rows->type == GGML_TYPE_F32 && n_k % UNIT == 0 && weights->ne[2] == 1 && weights->ne[3] == 1 && rows->ne[2] == 1 && rows->ne[3] == 1;
}

Operands operands(const ggml_tensor * dst, const void * packed, size_t weight_stride) {
    const int64_t n_k = dst->src[0]->ne[0];
    return {
        (const char *) dst->src[0]->data, weight_stride, (const char *) packed, ggml_row_size(GGML_TYPE_Q8_0, n_k),
        (char *) dst->data, dst->nb[1], n_k,
    };
}

}  // namespace

bool pyllama_spec_mul_mat_q8_0(const ggml_compute_params * params, const ggml_tensor * dst) {
    const ggml_tensor * weights = dst->src[0];
    const ggml_tensor * rows    = dst->src[1];
    if (weights->type != GGML_TYPE_Q8_0 || !is_flat(weights, rows)) {
        return false;
    }
    run(operands(dst, params->wdata, weights->nb[1]), dst, params);
    return true;
}

bool pyllama_spec_mul_mat_repacked(const ggml_compute_params * params, const ggml_tensor * dst, int n_interleaved, int n_bytes) {
    const ggml_tensor * weights = dst->src[0];
    const ggml_tensor * rows    = dst->src[1];
    if (weights->type != GGML_TYPE_Q4_0 || n_interleaved != 8 || n_bytes != 8 || weights->ne[1] % 8 != 0 ||
            !is_flat(weights, rows)) {
        return false;
    }
    const ggml_from_float_t quantize = ggml_get_type_traits_cpu(GGML_TYPE_Q8_0)->from_float;
    const size_t stride = ggml_row_size(GGML_TYPE_Q8_0, rows->ne[0]);
    for (int64_t i1 = params->ith; i1 < rows->ne[1]; i1 += params->nth) {
        quantize((const float *) ((const char *) rows->data + i1 * rows->nb[1]), (char *) params->wdata + i1 * stride,
            rows->ne[0]);
    }
    if (params->ith == 0) {
        ggml_threadpool_chunk_set(params->threadpool, params->nth);
    }
    ggml_barrier(params->threadpool);
    run(operands(dst, params->wdata, 8 * weights->nb[1]), dst, params);
    return true;
}

size_t pyllama_spec_byte_scratch(const ggml_tensor * dst) {
    const ggml_type type = dst->src[0]->type;
    return type == GGML_TYPE_Q8_0 || type == GGML_TYPE_Q4_0 ? Packed::n_bytes(dst->src[0]->ne[0]) : 0;
}

const char * pyllama_spec_byte_kernels(void) {
    return HAS_BYTES;
}

#else

size_t pyllama_spec_byte_scratch(const ggml_tensor *) {
    return 0;
}

const char * pyllama_spec_byte_kernels(void) {
    return "";
}

bool pyllama_spec_mul_mat_q8_0(const ggml_compute_params *, const ggml_tensor *) {
    return false;
}

bool pyllama_spec_mul_mat_repacked(const ggml_compute_params *, const ggml_tensor *, int, int) {
    return false;
}

#endif
