// Products of our kernels: to the bit the same for a row of a batch as for the row alone, and near sums in double precision.
// Prints a line for each type.
#include "kernels/repacked.h"

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"

#include "../kernels/numbers.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

using namespace pyllama_spec;

namespace {

struct Case {
    ggml_type type;
    int64_t   n_k, n_out, n_most;

    const RepackedKernel &       kernel = *repacked_kernel_of(type);
    const ggml_type_traits_cpu * traits = ggml_get_type_traits_cpu(type);
    ggml_type                    row_type = traits->vec_dot_type;
    size_t                       n_row = ggml_row_size(row_type, n_k), stride = ggml_row_size(type, n_k);
    int64_t                      n_blocks = n_k / kernel.length;
    std::vector<char>            flat = std::vector<char>(stride * n_out), weights, rows = std::vector<char>(n_row * n_most);

    Case(ggml_type type, int64_t n_k, int64_t n_out, int64_t n_most) : type(type), n_k(n_k), n_out(n_out), n_most(n_most) {
        const std::vector<float> w = draw(n_k * n_out, 1), x = draw(n_k * n_most, 2);
        ggml_quantize_chunk(type, w.data(), flat.data(), 0, n_out, n_k, std::vector<float>(n_k, 1.0f).data());
        for (int64_t i = 0; i < n_most; ++i) {
            ggml_get_type_traits_cpu(row_type)->from_float(x.data() + i * n_k, rows.data() + i * n_row, n_k);
        }
        const int64_t n_groups = n_out / kernel.height;
        weights.resize(n_groups * n_blocks * kernel.n_bytes);
        for (int64_t g = 0; g < n_groups; ++g) {
            std::vector<char> back(stride * kernel.height);
            for (int64_t b = 0; b < n_blocks; ++b) {
                char * to = weights.data() + (g * n_blocks + b) * kernel.n_bytes;
                kernel.pack(flat.data() + g * kernel.height * stride + b * kernel.n_from, stride, to);
                kernel.unpack(to, back.data() + b * kernel.n_from, stride);
            }
            if (std::memcmp(back.data(), flat.data() + g * kernel.height * stride, back.size()) != 0) {
                std::printf("%s is not read back as it was\n", ggml_type_name(type));
                std::exit(1);
            }
        }
    }

    // The rows from `first` on in one tile.
    void multiply(int64_t first, int width, float * out) const {
        std::vector<char> x(width * n_blocks * kernel.n_x_bytes);
        float * outs[MAX_TILE];
        for (int r = 0; r < width; ++r) {
            kernel.fill(rows.data() + (first + r) * n_row, n_blocks, x.data(), width, r);
            outs[r] = out + (first + r) * n_out;
        }
        kernel.tiles[width - 1]({ weights.data(), n_out, n_blocks, x.data(), outs, true });
    }

    std::vector<float> product(int64_t n_rows) const {
        std::vector<float> out(n_rows * n_out);
        const int64_t n_tiles = (n_rows + kernel.n_most - 1) / kernel.n_most;
        for (int64_t row = 0, tiles = n_tiles; row < n_rows; --tiles) {
            const int width = (int) ((n_rows - row + tiles - 1) / tiles);
            multiply(row, width, out.data());
            row += width;
        }
        return out;
    }

    double error_of(const std::vector<float> & got) const {
        std::vector<float> w(n_k * n_out), x(n_k);
        ggml_get_type_traits(type)->to_float(flat.data(), w.data(), w.size());
        double worst = 0, squares = 0;
        for (int64_t i = 0; i < n_most; ++i) {
            unpack_row(row_type, rows.data() + i * n_row, x.data(), n_k);
            for (int64_t j = 0; j < n_out; ++j) {
                double sum = 0;
                for (int64_t k = 0; k < n_k; ++k) {
                    sum += (double) w[j * n_k + k] * x[k];
                }
                worst = std::fmax(worst, std::fabs(sum - got[i * n_out + j]));
                squares += sum * sum;
            }
        }
        return worst / std::sqrt(squares / (n_most * n_out));
    }
};

constexpr int64_t N_MOST = 80;

bool is_right(ggml_type type) {
    double worst = 0;
    bool is_equal = true;
    for (int64_t n_k : ggml_blck_size(type) == 256 ? std::vector<int64_t>{ 256, 1280 } : std::vector<int64_t>{ 32, 96, 896 }) {
        const Case c(type, n_k, 48, N_MOST);
        std::vector<float> alone(N_MOST * c.n_out);
        for (int64_t i = 0; i < N_MOST; ++i) {
            c.multiply(i, 1, alone.data());
        }
        worst = std::fmax(worst, c.error_of(alone));
        for (int64_t n_rows : { 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 23, 32, 33, 40, 47, 70, 80 }) {
            is_equal &= std::memcmp(c.product(n_rows).data(), alone.data(), n_rows * c.n_out * sizeof(float)) == 0;
        }
    }
    const bool is_near = worst < 4e-6;
    std::printf("%s %s, largest error %.1e%s\n", ggml_type_name(type), is_equal ? "equal" : "DIFFERS", worst, is_near ? "" : " WRONG");
    return is_equal && is_near;
}

// x [n_rows, n_k] times weights of 16 bits, as the engine's graph does it.
std::vector<float> graph_product(ggml_type type, const std::vector<char> & w, const float * x, int64_t n_k, int64_t n_out, int64_t n_rows) {
    ggml_context * context = ggml_init({ size_t(1) << 20, nullptr, true });
    ggml_tensor * weights = ggml_new_tensor_2d(context, type, n_k, n_out), * rows = ggml_new_tensor_2d(context, GGML_TYPE_F32, n_k, n_rows);
    ggml_tensor * out = ggml_mul_mat(context, weights, rows);
    ggml_cgraph * graph = ggml_new_graph(context);
    ggml_build_forward_expand(graph, out);
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors_from_buft(context, ggml_backend_cpu_buffer_type());
    ggml_backend_tensor_set(weights, w.data(), 0, w.size());
    ggml_backend_tensor_set(rows, x, 0, n_k * n_rows * sizeof(float));
    ggml_backend_t cpu = ggml_backend_cpu_init();
    ggml_backend_cpu_set_n_threads(cpu, 2);
    if (ggml_backend_graph_compute(cpu, graph) != GGML_STATUS_SUCCESS) {
        std::exit(3);
    }
    std::vector<float> got(n_rows * n_out);
    ggml_backend_tensor_get(out, got.data(), 0, got.size() * sizeof(float));
    ggml_backend_free(cpu);
    ggml_backend_buffer_free(buffer);
    ggml_free(context);
    return got;
}

bool is_float_right(ggml_type type) {
    double worst = 0;
    bool is_equal = true;
    for (int64_t n_k : { 1, 15, 72, 576 }) {
        constexpr int64_t N_OUT = 37;
        std::vector<float> w = draw(n_k * N_OUT, 1), x = draw(n_k * N_MOST, 2);
        std::vector<char> packed(ggml_row_size(type, n_k) * N_OUT), packed_x(ggml_row_size(type, n_k) * N_MOST);
        ggml_quantize_chunk(type, w.data(), packed.data(), 0, N_OUT, n_k, nullptr);
        ggml_quantize_chunk(type, x.data(), packed_x.data(), 0, N_MOST, n_k, nullptr);
        ggml_get_type_traits(type)->to_float(packed.data(), w.data(), w.size());
        ggml_get_type_traits(type)->to_float(packed_x.data(), x.data(), x.size());
        double squares = 0, most = 0;
        for (int64_t i = 0; i < N_MOST; ++i) {
            const std::vector<float> alone = graph_product(type, packed, x.data() + i * n_k, n_k, N_OUT, 1);
            for (int64_t j = 0; j < N_OUT; ++j) {
                double sum = 0;
                for (int64_t k = 0; k < n_k; ++k) {
                    sum += (double) w[j * n_k + k] * x[i * n_k + k];
                }
                most = std::fmax(most, std::fabs(sum - alone[j]));
                squares += sum * sum;
            }
            for (int64_t n_rows : { 2, 3, 4, 5, 6, 7, 9, 13, 23, 32, 33, 40, 47, 70, 80 }) {
                if (i + n_rows <= N_MOST && i % 20 == 0) {
                    const std::vector<float> many = graph_product(type, packed, x.data() + i * n_k, n_k, N_OUT, n_rows);
                    is_equal &= std::memcmp(many.data(), alone.data(), N_OUT * sizeof(float)) == 0;
                }
            }
        }
        worst = std::fmax(worst, most / std::sqrt(squares / (N_MOST * N_OUT)));
    }
    const bool is_near = worst < 4e-6;
    std::printf("%s %s, largest error %.1e%s\n", ggml_type_name(type), is_equal ? "equal" : "DIFFERS", worst, is_near ? "" : " WRONG");
    return is_equal && is_near;
}

constexpr ggml_type TYPES[] = {
    GGML_TYPE_Q8_0, GGML_TYPE_Q5_0, GGML_TYPE_Q5_1, GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_IQ4_NL, GGML_TYPE_MXFP4,
    GGML_TYPE_Q2_K, GGML_TYPE_Q3_K, GGML_TYPE_Q4_K, GGML_TYPE_Q5_K, GGML_TYPE_Q6_K, GGML_TYPE_IQ4_XS,
};

}  // namespace

int main() {
    ggml_cpu_init();
    bool is_right_everywhere = is_float_right(GGML_TYPE_F16) & is_float_right(GGML_TYPE_BF16);
    for (ggml_type type : TYPES) {
        is_right_everywhere &= is_right(type);
    }
    return !is_right_everywhere;
}
