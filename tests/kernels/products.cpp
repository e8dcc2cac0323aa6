// Matrix products of the engine's CPU backend against sums in double precision, over the numbers that both
// sides are packed to. Prints the largest difference of each product over the products' size. An argument is the number of
// rows of the widest batches.
#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"
#include "kernels/blocks.h"
#include "kernels/rows.h"
#include "numbers.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <tuple>
#include <vector>

namespace {

struct Case {
    ggml_type type;
    bool      is_repacked;  // by our buffer type, or as in the file
    int64_t   n_rows, n_k, n_out;
    int       n_threads;
    int64_t   n_matrices = 1;  // of weights
    int64_t   n_shared   = 1;  // matrices of rows that use the same weights, as heads of queries do
};

// Random weights as in a file, made once: packing takes longer than multiplying.
const std::vector<char> & packed_weights(ggml_type type, int64_t n_k, int64_t n_out) {
    static std::map<std::tuple<ggml_type, int64_t, int64_t>, std::vector<char>> kept;
    std::vector<char> & packed = kept[{ type, n_k, n_out }];
    if (packed.empty()) {
        packed.resize(ggml_row_size(type, n_k) * n_out);
        ggml_quantize_chunk(type, draw(n_k * n_out, 1).data(), packed.data(), 0, n_out, n_k, nullptr);
    }
    return packed;
}

// Whether weights that were set, also in two pieces, are read back as they were.
bool is_read_back(ggml_tensor * w, const std::vector<char> & packed) {
    const size_t cut = packed.size() / 3;
    ggml_backend_tensor_set(w, packed.data(), 0, cut);
    ggml_backend_tensor_set(w, packed.data() + cut, cut, packed.size() - cut);
    std::vector<char> got(packed.size());
    ggml_backend_tensor_get(w, got.data(), 0, cut / 2);
    ggml_backend_tensor_get(w, got.data() + cut / 2, cut / 2, got.size() - cut / 2);
    return got == packed;
}

double relative_error(const Case & c, std::vector<float> * results = nullptr, bool has_reference = true) {
    const int64_t all_out = c.n_out * c.n_matrices, all_rows = c.n_rows * c.n_matrices * c.n_shared;
    const std::vector<char> & packed_w = packed_weights(c.type, c.n_k, all_out);
    const std::vector<float> rows = draw(all_rows * c.n_k, 2);
    const ggml_init_params sizes = { size_t(1) << 20, nullptr, true };
    ggml_context * for_weights = ggml_init(sizes);
    ggml_context * for_rest    = ggml_init(sizes);
    ggml_tensor * w = ggml_new_tensor_3d(for_weights, c.type, c.n_k, c.n_out, c.n_matrices);
    ggml_tensor * x = ggml_new_tensor_3d(for_rest, GGML_TYPE_F32, c.n_k, c.n_rows, c.n_matrices * c.n_shared);
    ggml_tensor * y = ggml_mul_mat(for_rest, w, x);
    const auto place = c.is_repacked ? pyllama_spec_repacked_buffer_type() : ggml_backend_cpu_buffer_type();
    ggml_backend_buffer_t a = ggml_backend_alloc_ctx_tensors_from_buft(for_weights, place);
    ggml_backend_buffer_t b = ggml_backend_alloc_ctx_tensors_from_buft(for_rest, ggml_backend_cpu_buffer_type());
    ggml_backend_tensor_set(w, packed_w.data(), 0, packed_w.size());
    if (c.is_repacked && !is_read_back(w, packed_w)) {
        std::exit(4);
    }
    ggml_backend_tensor_set(x, rows.data(), 0, rows.size() * sizeof(float));
    ggml_cgraph * graph = ggml_new_graph(for_rest);
    ggml_build_forward_expand(graph, y);
    ggml_backend_t cpu = ggml_backend_cpu_init();
    ggml_backend_cpu_set_n_threads(cpu, c.n_threads);
    if (ggml_backend_graph_compute(cpu, graph) != GGML_STATUS_SUCCESS) {
        std::exit(3);
    }
    std::vector<float> got(all_rows * c.n_out);
    ggml_backend_tensor_get(y, got.data(), 0, got.size() * sizeof(float));
    if (results) {
        *results = got;
    }
    ggml_backend_free(cpu);
    ggml_backend_buffer_free(a);
    ggml_backend_buffer_free(b);
    ggml_free(for_weights);
    ggml_free(for_rest);
    if (!has_reference) {
        return 0;
    }

    const ggml_type row_type = ggml_get_type_traits_cpu(c.type)->vec_dot_type;
    std::vector<float> w_back(c.n_k * all_out), x_back(rows.size());
    std::vector<char>  packed_x(ggml_row_size(row_type, c.n_k) * all_rows);
    ggml_get_type_traits(c.type)->to_float(packed_w.data(), w_back.data(), w_back.size());
    for (int64_t i = 0; i < all_rows; ++i) {
        ggml_get_type_traits_cpu(row_type)->from_float(
            rows.data() + i * c.n_k, packed_x.data() + i * ggml_row_size(row_type, c.n_k), c.n_k);
    }
    for (int64_t i = 0; i < all_rows; ++i) {
        unpack_row(row_type, packed_x.data() + i * ggml_row_size(row_type, c.n_k), x_back.data() + i * c.n_k, c.n_k);
    }
    double worst = 0, squares = 0;
    for (int64_t i = 0; i < all_rows; ++i) {
        const float * matrix = w_back.data() + i / (c.n_rows * c.n_shared) * c.n_out * c.n_k;
        for (int64_t j = 0; j < c.n_out; ++j) {
            double sum = 0;
            for (int64_t k = 0; k < c.n_k; ++k) {
                sum += (double) matrix[j * c.n_k + k] * x_back[i * c.n_k + k];
            }
            worst = std::fmax(worst, std::fabs(sum - got[i * c.n_out + j]));
            squares += sum * sum;
        }
    }
    return worst / std::sqrt(squares / (all_rows * c.n_out));
}

// Weights repacked by our buffer type: right, and each row of any batch to the bit as in the widest one.
void print_rows(ggml_type type, int n_widest) {
    const bool is_super = ggml_blck_size(type) == 256;
    // One panel and several, of equal length and not; one part of 64 weight rows and several, whole and not; a last group
    // that its rows do not fill.
    for (int64_t n_k : is_super ? std::vector<int64_t>{ 256, 1536, 2816 } : std::vector<int64_t>{ 32, 96, 896, 2720 }) {
        for (int64_t n_out : { 16, 37, 208 }) {
            std::vector<float> widest;
            for (int n_rows : { n_widest, 40, 32, 23, 16, 13, 9, 8, 7, 6, 5, 4, 3, 2, 1 }) {
                const Case c = { type, true, n_rows, n_k, n_out, 1 + int(n_out > 16) };
                std::vector<float> results;
                const double error = relative_error(c, &results, n_rows == n_widest);
                if (n_rows == n_widest) {
                    widest = results;
                }
                const bool is_equal = std::memcmp(results.data(), widest.data(), results.size() * sizeof(float)) == 0;
                std::printf("%s-rows %d %d %d %.3e\n", ggml_type_name(type), int(n_rows), int(n_k), int(n_out),
                    is_equal ? error : 1.0);
            }
        }
    }
}

// Experts, repacked: each pair of a token and one of its experts has the bits that the expert's matrix alone gives.
void print_experts(ggml_type type) {
    constexpr int64_t N_K = 1536, N_OUT = 72, N_EXPERTS = 5, N_USED = 2, N_TOKENS = 13;
    const ggml_init_params sizes = { size_t(1) << 20, nullptr, true };
    ggml_context * for_weights = ggml_init(sizes);
    ggml_context * for_rest    = ggml_init(sizes);
    ggml_tensor * all = ggml_new_tensor_3d(for_weights, type, N_K, N_OUT, N_EXPERTS);
    ggml_tensor * ones[N_EXPERTS], * alone[N_EXPERTS];
    for (ggml_tensor *& one : ones) {
        one = ggml_new_tensor_2d(for_weights, type, N_K, N_OUT);
    }
    ggml_tensor * x   = ggml_new_tensor_3d(for_rest, GGML_TYPE_F32, N_K, 1, N_TOKENS);
    ggml_tensor * ids = ggml_new_tensor_2d(for_rest, GGML_TYPE_I32, N_USED, N_TOKENS);
    ggml_tensor * y   = ggml_mul_mat_id(for_rest, all, x, ids);
    ggml_cgraph * graph = ggml_new_graph(for_rest);
    ggml_build_forward_expand(graph, y);
    for (int i = 0; i < N_EXPERTS; ++i) {
        alone[i] = ggml_mul_mat(for_rest, ones[i], ggml_reshape_2d(for_rest, x, N_K, N_TOKENS));
        ggml_build_forward_expand(graph, alone[i]);
    }
    ggml_backend_buffer_t a = ggml_backend_alloc_ctx_tensors_from_buft(for_weights, pyllama_spec_repacked_buffer_type());
    ggml_backend_buffer_t b = ggml_backend_alloc_ctx_tensors_from_buft(for_rest, ggml_backend_cpu_buffer_type());
    const std::vector<char> & packed = packed_weights(type, N_K, N_OUT * N_EXPERTS);
    const std::vector<float> rows = draw(N_K * N_TOKENS, 2);
    const size_t n_one = packed.size() / N_EXPERTS;
    for (int i = 0; i < N_EXPERTS; ++i) {
        ggml_backend_tensor_set(ones[i], packed.data() + i * n_one, 0, n_one);
    }
    if (!is_read_back(all, packed)) {
        std::exit(4);
    }
    ggml_backend_tensor_set(x, rows.data(), 0, rows.size() * sizeof(float));
    int32_t chosen[N_TOKENS][N_USED];
    for (int t = 0; t < N_TOKENS; ++t) {  // expert 3 has none
        chosen[t][0] = t % 3;
        chosen[t][1] = t % 2 ? 4 : (t + 1) % 3;
    }
    ggml_backend_tensor_set(ids, chosen, 0, sizeof(chosen));
    ggml_backend_t cpu = ggml_backend_cpu_init();
    ggml_backend_cpu_set_n_threads(cpu, 2);
    if (ggml_backend_graph_compute(cpu, graph) != GGML_STATUS_SUCCESS) {
        std::exit(3);
    }
    const auto values_of = [](const ggml_tensor * tensor) {
        std::vector<float> out(ggml_nelements(tensor));
        ggml_backend_tensor_get(tensor, out.data(), 0, out.size() * sizeof(float));
        return out;
    };
    const std::vector<float> got = values_of(y);
    bool is_equal = true;
    for (int t = 0; t < N_TOKENS; ++t) {
        for (int s = 0; s < N_USED; ++s) {
            const std::vector<float> expected = values_of(alone[chosen[t][s]]);
            is_equal = is_equal && std::memcmp(&got[(t * N_USED + s) * N_OUT], &expected[t * N_OUT], N_OUT * sizeof(float)) == 0;
        }
    }
    std::printf("%s-rows experts %.1f\n", ggml_type_name(type), is_equal ? 0.0 : 1.0);
    ggml_backend_free(cpu);
    ggml_backend_buffer_free(a);
    ggml_backend_buffer_free(b);
    ggml_free(for_weights);
    ggml_free(for_rest);
}

}  // namespace

int main(int argc, char ** argv) {
    ggml_cpu_init();
    const int n_widest = argc > 1 ? std::atoi(argv[1]) : 512;
    if (pyllama_spec_repacked_buffer_type()) {
        for (ggml_type type : { GGML_TYPE_Q8_0, GGML_TYPE_Q5_0, GGML_TYPE_Q5_1, GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_IQ4_NL,
                 GGML_TYPE_MXFP4, GGML_TYPE_Q6_K, GGML_TYPE_Q5_K, GGML_TYPE_Q4_K, GGML_TYPE_Q3_K, GGML_TYPE_Q2_K, GGML_TYPE_IQ4_XS }) {
            print_rows(type, n_widest);
            print_experts(type);
        }
    }
    for (ggml_type type : { GGML_TYPE_BF16, GGML_TYPE_F16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_Q5_0,
             GGML_TYPE_Q5_1, GGML_TYPE_IQ4_NL, GGML_TYPE_MXFP4, GGML_TYPE_Q2_K, GGML_TYPE_Q3_K, GGML_TYPE_Q4_K, GGML_TYPE_Q5_K,
             GGML_TYPE_Q6_K, GGML_TYPE_IQ4_XS }) {
        // Kernels of the engine's own round the sums of Q8_1's blocks to halves.
        const bool is_halved = ggml_get_type_traits_cpu(type)->vec_dot_type == GGML_TYPE_Q8_1;
        if (is_halved && !pyllama_spec::kernel_of(type)) {
            continue;
        }
        // 1 to 8 rows are one tile, of floats 1 to 6; 13 and 32 are several; 40 are not few. 32 and 96 do not fit a
        // pair of blocks.
        const bool is_super = ggml_blck_size(type) == 256;
        for (int64_t n_rows : { 1, 2, 3, 4, 5, 6, 7, 8, 13, 32, 40 }) {
            for (int64_t n_k : is_super ? std::vector<int64_t>{ 256, 1536 } : std::vector<int64_t>{ 32, 64, 96, 576 }) {
                for (int64_t n_out : { 8, 24, 200 }) {
                    if (n_rows > 32 && is_halved) {
                        continue;
                    }
                    const Case c = { type, false, n_rows, n_k, n_out, 1 + int(n_out > 8) };
                    std::printf("%s %d %d %d %.3e\n", ggml_type_name(c.type), int(n_rows), int(n_k), int(n_out),
                        relative_error(c));
                }
            }
        }
        // A tile of such rows fits no stack.
        for (int64_t n_rows : { 1, 6, 13 }) {
            const Case c = { type, false, n_rows, 20480, 24, 2 };
            std::printf("%s %d 20480 24 %.3e\n", ggml_type_name(c.type), int(n_rows), relative_error(c));
        }
        // Attention: heads that share their keys, widths that no vector divides.
        if (type == GGML_TYPE_BF16 || type == GGML_TYPE_F16) {
            for (int64_t n_k : { 1, 15, 64, 72, 250 }) {
                for (int64_t n_rows : { 1, 2, 5 }) {
                    for (int64_t n_shared : { 1, 3 }) {
                        const Case c = { type, false, n_rows, n_k, 37, 2, 3, n_shared };
                        std::printf("%s-shared %d %d %d %.3e\n", ggml_type_name(c.type), int(n_rows), int(n_k),
                            int(n_shared), relative_error(c));
                    }
                }
            }
        }
        // Weight rows that are not a multiple of a tile's height.
        for (int64_t n_out : { 1, 3, 17 }) {
            const Case c = { type, false, 5, is_super ? 256 : 128, n_out, 2 };
            std::printf("%s 5 - %d %.3e\n", ggml_type_name(c.type), int(n_out), relative_error(c));
        }
    }
}
