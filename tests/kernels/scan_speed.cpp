// Microseconds of a layer's scan over 1, 5 and 8 tokens of one sequence on one thread, in turns: medians. States of
// several layers take turns, as they do in a model. "engine" is the pin's own operation, with the copies of the state
// that its graphs add to it; "ours" of csrc/kernels/scan.h, with a log of 8 tokens.
#include "kernels/scan.h"

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <vector>

namespace {

constexpr int     N_LAYERS = 8, REPEATS = 41;
constexpr int64_t N_TOKENS[] = { 1, 5, 8 };

double thread_us() {
    timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return 1e6 * double(now.tv_sec) + 1e-3 * double(now.tv_nsec);
}

enum Kind { DELTA, SSM, MAMBA1, CONV };

// All layers in one graph.
struct Graph {
    ggml_context *      ctx   = ggml_init({ size_t(8) << 20, nullptr, true });
    ggml_cgraph *       graph = ggml_new_graph(ctx);
    ggml_cplan          plan;
    std::vector<uint8_t> work;
    std::vector<double> times;

    ggml_tensor * of(std::vector<int64_t> ne, ggml_type type = GGML_TYPE_F32) {
        return ggml_new_tensor(ctx, type, (int) ne.size(), ne.data());
    }

    void add(Kind kind, bool is_ours, int64_t n_tokens) {
        const int64_t heads = kind == DELTA ? 16 : kind == SSM ? 24 : 1536, cols = kind == MAMBA1 ? 16 : 128;
        const int64_t rows = kind == DELTA ? 128 : kind == SSM ? 64 : 1, n_state = heads * rows * cols;
        if (kind == CONV) {
            ggml_tensor * input = of({ 2 + n_tokens, 2048, 1 });
            ggml_build_forward_expand(graph, ggml_ssm_conv(ctx, input, of({ 3, 2048 })));
            return;
        }
        ggml_tensor * ids = of({ 1 }, GGML_TYPE_I32), * states = of({ n_state, is_ours ? 2 : 1 });
        const pyllama_spec_scan_shape shape = { heads, rows, cols, 1, 8 };
        ggml_tensor * log = of({ pyllama_spec_cell_log(&shape), 1 });
        const pyllama_spec_scan_place place = { 0, 1, -1, 8 };
        ggml_tensor * k = of({ cols, kind == DELTA ? heads : 1, n_tokens, 1 }), * q = of({ cols, kind == DELTA ? heads : 1, n_tokens, 1 });
        ggml_tensor * v = of({ rows, heads, n_tokens, 1 });
        ggml_tensor * out, * last;
        if (kind == DELTA) {
            ggml_tensor * g = of({ 1, heads, n_tokens, 1 }), * beta = of({ 1, heads, n_tokens, 1 });
            if (is_ours) {
                ggml_build_forward_expand(graph, pyllama_spec_delta_scan(ctx, q, k, v, g, beta, states, log, ids, place));
                return;
            }
            ggml_tensor * gathered = ggml_reshape_4d(ctx, ggml_get_rows(ctx, states, ids), cols, rows, heads, 1);
            out = ggml_gated_delta_net(ctx, q, k, v, g, beta, gathered, 1);
        } else {
            ggml_tensor * dt = of({ heads, n_tokens, 1 }), * a = of({ kind == MAMBA1 ? cols : 1, heads });
            if (is_ours) {
                ggml_build_forward_expand(graph, pyllama_spec_ssm_scan(ctx, v, dt, a, k, q, states, log, ids, place));
                return;
            }
            out = ggml_ssm_scan(ctx, ggml_reshape_4d(ctx, states, cols, rows, heads, 1), v, dt, a, k, q, ids, 1);
        }
        last = ggml_view_1d(ctx, out, n_state, (size_t) (rows * heads * n_tokens) * sizeof(float));
        ggml_build_forward_expand(graph, ggml_cpy(ctx, last, ggml_view_1d(ctx, states, n_state, 0)));
    }

    Graph(Kind kind, bool is_ours, int64_t n_tokens) {
        for (int i = 0; i < N_LAYERS; ++i) {
            add(kind, is_ours, n_tokens);
        }
        ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors_from_buft(ctx, ggml_backend_cpu_buffer_type());
        ggml_backend_buffer_clear(buffer, 0);
        plan = ggml_graph_plan(graph, 1, nullptr);
        work.resize(plan.work_size + 64);
        plan.work_data = work.data();
    }

    void measure() {
        const double start = thread_us();
        if (ggml_graph_compute(graph, &plan) != GGML_STATUS_SUCCESS) {
            std::exit(3);
        }
        times.push_back((thread_us() - start) / N_LAYERS);
    }

    double median() {
        std::sort(times.begin(), times.end());
        return times[times.size() / 2];
    }
};

void compare(const char * name, Kind kind, bool is_ours) {
    std::vector<std::unique_ptr<Graph>> graphs;
    for (const int64_t n : N_TOKENS) {
        graphs.push_back(std::make_unique<Graph>(kind, is_ours, n));
    }
    for (int i = 0; i < REPEATS; ++i) {
        for (auto & graph : graphs) {
            graph->measure();
        }
    }
    std::printf("%-16s %-7s", name, is_ours ? "ours" : "engine");
    for (auto & graph : graphs) {
        std::printf(" %9.1f", graph->median());
    }
    std::printf("  5 tokens x %.2f\n", graphs[1]->median() / graphs[0]->median());
}

}  // namespace

int main() {
    compare("gated-delta-net", DELTA, false);
    compare("gated-delta-net", DELTA, true);
    compare("mamba-2", SSM, false);
    compare("mamba-2", SSM, true);
    compare("mamba-1", MAMBA1, false);
    compare("short-conv", CONV, false);
}
