// Quantised weights times the few rows of a verify batch; rows_float.cpp gives the reason, and the rule that a result
// depends only on its weight row and its activation row.
#include "blocks.h"
#include "rows.h"
#include "tiles.h"

#include "ggml-backend.h"
#include "ggml-cpu.h"

#include <algorithm>

namespace {

using namespace pyllama_spec;

// Bytes for the activations of that many rows.
size_t n_scratch(int64_t n_rows, int64_t n_k) {
    return (size_t) (n_rows * ((n_k + GROUP - 1) / GROUP)) * sizeof(Group);
}

// Activation rows, packed by the engine, and the addresses of their results.
struct Rows {
    const char * from[FEW_ROWS];
    float *      out[FEW_ROWS];
    int          n = 0;
};

// Multiplies weight rows begin .. end by all rows. With several tiles it proceeds in parts, so that later tiles find
// the weights in the cache.
void multiply(const Kernel & kernel, Job job, const Rows & rows, int64_t begin, int64_t end) {
    constexpr int64_t N_BYTES = 128 << 10;
    const int64_t n_bytes = job.stride, part = std::max<int64_t>(N_BYTES / n_bytes / 16 * 16, 16);
    for (int64_t i0 = begin, last = begin; i0 < end; i0 = last) {
        last = rows.n <= MAX_COLUMNS ? end : std::min(end, i0 + part);
        for (int row = 0, n_tiles = (rows.n + MAX_COLUMNS - 1) / MAX_COLUMNS; row < rows.n; --n_tiles) {
            const int width = (rows.n - row + n_tiles - 1) / n_tiles;
            job.is_cached = row > 0;
            kernel.tiles[width - 1](job, i0, last, row);
            row += width;
        }
    }
}

Job pack(const Kernel & kernel, const ggml_compute_params * params, const ggml_tensor * weights, int64_t i2, Rows & rows) {
    const int64_t n_k = weights->ne[0], n_groups = (n_k + GROUP - 1) / GROUP;
    Group * x = (Group *) scratch(params, n_scratch(rows.n, n_k));
    for (int i = 0; i < rows.n; ++i) {
        kernel.fill(rows.from[i], n_k, x + i * n_groups);
    }
    return { (const char *) weights->data + i2 * weights->nb[2], weights->nb[1], n_k, n_groups, x, rows.out };
}

// The number of weight rows in a thread's chunk: see for_chunks().
int64_t height_of_chunk(const ggml_compute_params * params, int64_t n_out) {
    return std::clamp<int64_t>(n_out / (params->nth * 2) / 16 * 16, 16, 256);
}

// Also used for prompts: each row then equals the row alone, whatever part of the prompt was decoded before.
const Kernel * kernel_for(const ggml_compute_params * params, const ggml_tensor * dst) {
    const ggml_tensor * weights = dst->src[0];
    const Kernel * kernel = is_stock(params) ? nullptr : kernel_of(weights->type);
    return kernel && weights->ne[3] == 1 && dst->src[1]->type == GGML_TYPE_F32
        ? kernel : nullptr;
}

// The engine has packed the rows in params->wdata, one after the other.
bool multiply_all(const ggml_compute_params * params, const ggml_tensor * dst, const Kernel & kernel) {
    const ggml_tensor * weights = dst->src[0];
    const ggml_tensor * from    = dst->src[1];
    const size_t  stride = ggml_row_size(ggml_get_type_traits_cpu(weights->type)->vec_dot_type, weights->ne[0]);
    const int64_t n_rows = ggml_nrows(from), n_out = weights->ne[1];
    Rows rows;
    const auto take = [&](int64_t first) {
        rows.n = (int) std::min<int64_t>(n_rows - first, FEW_ROWS);
        for (int i = 0; i < rows.n; ++i) {
            const int64_t at = first + i, i1 = at % from->ne[1], i2 = at / from->ne[1] % from->ne[2], i3 = at / from->ne[1] / from->ne[2];
            rows.from[i] = (const char *) params->wdata + at * stride;
            rows.out[i]  = (float *) ((char *) dst->data + i1 * dst->nb[1] + i2 * dst->nb[2] + i3 * dst->nb[3]);
        }
        return pack(kernel, params, weights, 0, rows);
    };
    Job job = take(0);
    const int64_t height = height_of_chunk(params, n_out), n_chunks = (n_out + height - 1) / height;
    for (int64_t i = params->ith; i < n_chunks; i = ggml_threadpool_chunk_add(params->threadpool, 1)) {
        const int64_t begin = i * height, end = std::min(n_out, begin + height);
        multiply(kernel, job, rows, begin, end);
        // The further rows of a prompt; these weights are in the cache.
        for (int64_t first = FEW_ROWS; first < n_rows; first += FEW_ROWS) {
            multiply(kernel, take(first), rows, begin, end);
        }
        if (n_rows > FEW_ROWS) {
            job = take(0);
        }
    }
    return true;
}

// All tokens of an expert share its weights.
bool multiply_experts(const ggml_compute_params * params, const ggml_tensor * dst, const Kernel & kernel,
                      const pyllama_spec_routes & routes) {
    const ggml_tensor * weights = dst->src[0];
    const ggml_tensor * from    = dst->src[1];
    const size_t  stride = ggml_row_size(ggml_get_type_traits_cpu(weights->type)->vec_dot_type, weights->ne[0]);
    const int64_t n_out  = weights->ne[1];
    const int64_t height = height_of_chunk(params, n_out), n_chunks = (n_out + height - 1) / height;
    int64_t next = params->ith, n_before = 0;
    for (int64_t expert = 0; expert < weights->ne[2]; ++expert) {
        for (int64_t first = 0; first < routes.counts[expert]; first += FEW_ROWS, n_before += n_chunks) {
            if (next >= n_before + n_chunks) {
                continue;  // this thread has none of these chunks
            }
            Rows rows;
            rows.n = (int) std::min<int64_t>(routes.counts[expert] - first, FEW_ROWS);
            for (int i = 0; i < rows.n; ++i) {
                const int32_t * route = routes.rows + 2 * (expert * routes.n_most + first + i);
                const int64_t slot = route[0], token = route[1];
                rows.from[i] = (const char *) params->wdata + (slot % from->ne[1] + token * from->ne[1]) * stride;
                rows.out[i]  = (float *) ((char *) dst->data + slot * dst->nb[1] + token * dst->nb[2]);
            }
            const Job job = pack(kernel, params, weights, expert, rows);
            for (; next < n_before + n_chunks; next = ggml_threadpool_chunk_add(params->threadpool, 1)) {
                const int64_t begin = (next - n_before) * height;
                multiply(kernel, job, rows, begin, std::min(n_out, begin + height));
            }
        }
    }
    return true;
}

}  // namespace

bool pyllama_spec_is_few_rows(const ggml_compute_params * params, const ggml_tensor * dst) {
    if (is_stock(params)) {
        return false;
    }
    const int n_tokens = ((const pyllama_spec_pool *) params->threadpool)->n_tokens;
    if (n_tokens > 0) {
        return n_tokens <= FEW_ROWS;
    }
    const ggml_tensor * rows = dst->src[dst->op == GGML_OP_FLASH_ATTN_EXT ? 0 : 1];
    switch (dst->op) {
        case GGML_OP_MUL_MAT_ID:     return rows->ne[2] * rows->ne[3] <= FEW_ROWS;  // the third dimension counts tokens
        case GGML_OP_FLASH_ATTN_EXT: return rows->ne[1] * rows->ne[3] <= FEW_ROWS;
        default:                     return rows->ne[1] * rows->ne[2] * rows->ne[3] <= FEW_ROWS;
    }
}

bool pyllama_spec_takes_rows(const ggml_compute_params * params, const ggml_tensor * dst) {
    return kernel_for(params, dst) && dst->src[0]->ne[2] == 1;
}

bool pyllama_spec_mul_mat_rows(const ggml_compute_params * params, const ggml_tensor * dst) {
    return pyllama_spec_takes_rows(params, dst) && multiply_all(params, dst, *kernel_for(params, dst));
}

bool pyllama_spec_mul_mat_id_rows(
        const ggml_compute_params * params, const ggml_tensor * dst, pyllama_spec_routes routes) {
    const Kernel * kernel = kernel_for(params, dst);
    return kernel && multiply_experts(params, dst, *kernel, routes);
}

size_t pyllama_spec_block_scratch(const ggml_tensor * dst) {
    const ggml_tensor * weights = dst->src[0];
    if (weights->buffer && ggml_backend_buffer_get_type(weights->buffer) == pyllama_spec_repacked_buffer_type()) {
        return 0;
    }
    if (!kernel_of(weights->type)) {
        return 0;
    }
    return n_scratch(std::min<int64_t>(ggml_nrows(dst->src[1]) * (dst->op == GGML_OP_MUL_MAT_ID ? dst->src[2]->ne[0] : 1), FEW_ROWS),
        weights->ne[0]);
}
