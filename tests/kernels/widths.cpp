// Microseconds of a product of a tile's most rows and of one less, in turns: the least of many, weights in the cache, one
// thread. The processor's time counts, not the clock on the wall: other programs run beside.
#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"
#include "kernels/rows.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <vector>

namespace {

double thread_us() {
    timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return 1e6 * double(now.tv_sec) + 1e-3 * double(now.tv_nsec);
}

constexpr int64_t N_K = 768, N_OUT = 512;
constexpr int     REPEATS = 300;

struct Product {
    ggml_context *        contexts[2];
    ggml_backend_buffer_t buffers[2];
    ggml_cgraph *         graph;
    double                least = 1e30;

    Product(ggml_type type, bool is_repacked, int64_t n_rows) {
        for (ggml_context *& context : contexts) {
            context = ggml_init({ size_t(1) << 20, nullptr, true });
        }
        ggml_tensor * w = ggml_new_tensor_2d(contexts[0], type, N_K, N_OUT);
        ggml_tensor * x = ggml_new_tensor_2d(contexts[1], GGML_TYPE_F32, N_K, n_rows);
        ggml_tensor * y = ggml_mul_mat(contexts[1], w, x);
        const auto place = is_repacked ? pyllama_spec_repacked_buffer_type() : ggml_backend_cpu_buffer_type();
        buffers[0] = ggml_backend_alloc_ctx_tensors_from_buft(contexts[0], place);
        buffers[1] = ggml_backend_alloc_ctx_tensors_from_buft(contexts[1], ggml_backend_cpu_buffer_type());
        const std::vector<float> ones(N_K * std::max(N_OUT, n_rows), 1.0f);
        std::vector<char>        packed(ggml_row_size(type, N_K) * N_OUT);
        ggml_quantize_chunk(type, ones.data(), packed.data(), 0, N_OUT, N_K, nullptr);
        ggml_backend_tensor_set(w, packed.data(), 0, packed.size());
        ggml_backend_tensor_set(x, ones.data(), 0, N_K * n_rows * sizeof(float));
        graph = ggml_new_graph(contexts[1]);
        ggml_build_forward_expand(graph, y);
    }

    ~Product() {
        for (int i = 0; i < 2; ++i) {
            ggml_backend_buffer_free(buffers[i]);
            ggml_free(contexts[i]);
        }
    }

    Product(const Product &) = delete;

    void run(ggml_backend_t cpu) {
        // One thread: the caller's.
        const double start = thread_us();
        ggml_backend_graph_compute(cpu, graph);
        least = std::min(least, thread_us() - start);
    }
};

}  // namespace

int main() {
    ggml_cpu_init();
    ggml_backend_t cpu = ggml_backend_cpu_init();
    ggml_backend_cpu_set_n_threads(cpu, 1);
    const int n_most = std::strstr(pyllama_spec_block_kernels(), "AVX-512") ? 8 : 6;
    const struct { ggml_type type; bool is_repacked; int n_most; } kinds[] = {
        { GGML_TYPE_BF16, false, 6 }, { GGML_TYPE_F16, false, 6 }, { GGML_TYPE_Q8_0, false, 8 }, { GGML_TYPE_Q6_K, false, 8 },
        { GGML_TYPE_Q5_0, true, n_most }, { GGML_TYPE_Q4_1, true, n_most }, { GGML_TYPE_MXFP4, true, n_most },
        { GGML_TYPE_Q5_K, true, n_most }, { GGML_TYPE_Q4_K, true, n_most }, { GGML_TYPE_Q2_K, true, n_most },
        { GGML_TYPE_IQ4_XS, true, n_most },
    };
    for (const auto & kind : kinds) {
        Product less(kind.type, kind.is_repacked, kind.n_most - 1), most(kind.type, kind.is_repacked, kind.n_most);
        for (int i = 0; i < REPEATS; ++i) {
            less.run(cpu);
            most.run(cpu);
        }
        std::printf("%s %d %.2f %.2f\n", ggml_type_name(kind.type), kind.n_most, less.least, most.least);
    }
    ggml_backend_free(cpu);
}
