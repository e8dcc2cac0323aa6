// The kernels for repacked weights of each instruction set that this processor has, on the same numbers: prints by type
// how many results differ in any bit between them, or between widths of a tile.
#include "kernels/repacked_x86.h"

#include "ggml-cpu.h"
#include "ggml.h"
#include "numbers.h"

#include <cstdio>
#include <vector>

using namespace pyllama_spec;

namespace {

#if defined(PYLLAMA_SPEC_BLOCKS_AVX2)

constexpr int64_t N_K = 768, N_OUT = 16, N_ROWS = 5;

template <class V> std::vector<float> product(ggml_type type, const std::vector<char> & weights, const std::vector<char> & rows, int width) {
    const RepackedKernel & kernel = *kernel_x86_of<V>(type);
    const int64_t n_blocks = N_K / kernel.length, n_groups = N_OUT / kernel.height;
    const size_t n_row = weights.size() / N_OUT, n_x = rows.size() / N_ROWS;
    std::vector<char> packed(n_groups * n_blocks * kernel.n_bytes), x(n_blocks * kernel.n_x_bytes * width);
    for (int64_t i = 0; i < n_groups * n_blocks; ++i) {
        kernel.pack(weights.data() + i / n_blocks * kernel.height * n_row + i % n_blocks * kernel.n_from, n_row,
            packed.data() + i * kernel.n_bytes);
    }
    std::vector<float> out(N_ROWS * N_OUT);
    for (int64_t first = 0; first < N_ROWS; first += width) {
        float * outs[MAX_TILE];
        std::vector<float> spare(N_OUT);
        for (int r = 0; r < width; ++r) {
            const bool is_row = first + r < N_ROWS;
            outs[r] = is_row ? out.data() + (first + r) * N_OUT : spare.data();
            kernel.fill(rows.data() + (is_row ? first + r : 0) * n_x, n_blocks, x.data(), width, r);
        }
        kernel.tiles[width - 1]({ packed.data(), N_OUT, n_blocks, x.data(), outs, true });
    }
    return out;
}

template <class V> int n_different(ggml_type type, const std::vector<char> & weights, const std::vector<char> & rows, const std::vector<float> & expected) {
    int n = 0;
    for (int width = 1; width <= kernel_x86_of<V>(type)->n_most; ++width) {
        const std::vector<float> got = product<V>(type, weights, rows, width);
        for (size_t i = 0; i < got.size(); ++i) {
            n += std::memcmp(&got[i], &expected[i], sizeof(float)) != 0;
        }
    }
    return n;
}

void compare(ggml_type type) {
    const std::vector<float> weights = draw(N_K * N_OUT, 1), rows = draw(N_K * N_ROWS, 2);
    std::vector<char> packed(ggml_row_size(type, N_K) * N_OUT);
    ggml_quantize_chunk(type, weights.data(), packed.data(), 0, N_OUT, N_K, nullptr);
    const ggml_type row_type = ggml_get_type_traits_cpu(type)->vec_dot_type;
    const size_t n_row = ggml_row_size(row_type, N_K);
    std::vector<char> x(n_row * N_ROWS), again(n_row);
    int n_rows_apart = 0;
    for (int64_t i = 0; i < N_ROWS; ++i) {
        ggml_get_type_traits_cpu(row_type)->from_float(rows.data() + i * N_K, x.data() + i * n_row, N_K);
        if (row_type == GGML_TYPE_Q8_K) {
            quantize_q8_K(rows.data() + i * N_K, again.data(), N_K);
            n_rows_apart += std::memcmp(again.data(), x.data() + i * n_row, n_row) != 0;
        }
    }
    const std::vector<float> expected = product<Twice<Avx2<false>>>(type, packed, x, 1);
    int n = n_rows_apart + n_different<Twice<Avx2<false>>>(type, packed, x, expected);
#if defined(PYLLAMA_SPEC_BLOCKS_AVX512)
    n += n_different<Avx512>(type, packed, x, expected);
#endif
#if defined(PYLLAMA_SPEC_BLOCKS_AVX512) || defined(__AVXVNNI__)
    n += n_different<Twice<Avx2<true>>>(type, packed, x, expected);
#endif
    std::printf("%s %d\n", ggml_type_name(type), n);
}

#endif

}  // namespace

int main() {
    ggml_cpu_init();
#if defined(PYLLAMA_SPEC_BLOCKS_AVX2)
    for (ggml_type type : { GGML_TYPE_Q8_0, GGML_TYPE_Q5_0, GGML_TYPE_Q5_1, GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_IQ4_NL,
             GGML_TYPE_MXFP4, GGML_TYPE_Q6_K, GGML_TYPE_Q5_K, GGML_TYPE_Q4_K, GGML_TYPE_Q3_K, GGML_TYPE_Q2_K, GGML_TYPE_IQ4_XS }) {
        compare(type);
    }
#endif
}
