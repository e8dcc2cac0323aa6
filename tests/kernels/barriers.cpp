// What threads do while they wait: of a graph in which one thread is late by MS, in a barrier, and of workers after a
// graph. Prints the milliseconds of a processor that the waiting took, and the sums that many graphs came to.
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"
#include "kernels/thread_pool.h"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <stdexcept>
#include <thread>
#include <vector>

namespace {

constexpr int N_THREADS = 4;

double cpu_ms() {
    timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return 1e3 * t.tv_sec + 1e-6 * t.tv_nsec;
}

struct plan {
    int late_ms  = 0;       // of thread `who`
    int who      = 0;
    bool fails   = false;
    std::atomic<int> n_calls{ 0 };
};

void add(ggml_tensor * dst, const ggml_tensor * a, int ith, int nth, void * user) {
    auto * how = (plan *) user;
    if (ith == how->who % nth && how->late_ms > 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(how->late_ms));
    }
    if (ith == how->who % nth && how->fails) {
        throw std::runtime_error("on purpose");
    }
    how->n_calls += 1;
    for (int64_t i = ith; i < ggml_nelements(dst); i += nth) {
        ((float *) dst->data)[i] = ((const float *) a->data)[i] + 1;
    }
}

struct graph {
    ggml_context * ctx = ggml_init({ (size_t) 16 << 20, nullptr, false });
    plan how;
    ggml_tensor * end;
    ggml_cgraph * nodes;
    ggml_threadpool * pool;
    std::vector<uint8_t> work;

    explicit graph(int n_ops) {
        end = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 64);
        ggml_set_zero(end);
        for (int i = 0; i < n_ops; ++i) {
            end = ggml_map_custom1(ctx, end, add, GGML_N_TASKS_MAX, &how);
        }
        nodes = ggml_new_graph_custom(ctx, 4096, false);
        ggml_build_forward_expand(nodes, end);
        ggml_threadpool_params params = ggml_threadpool_params_default(N_THREADS);
        params.poll = 1;
        pool = ggml_threadpool_new(&params);
        pyllama_spec_set_all_threads(1);
    }
    ~graph() {
        ggml_threadpool_free(pool);
        ggml_free(ctx);
    }
    bool compute() {
        ggml_cplan of = ggml_graph_plan(nodes, N_THREADS, pool);
        work.resize(of.work_size);
        of.work_data = work.data();
        try {
            ggml_graph_compute(nodes, &of);
        } catch (const std::runtime_error &) {
            return false;
        }
        return true;
    }
    float sum() const {
        float all = 0;
        for (int i = 0; i < 64; ++i) {
            all += ((const float *) end->data)[i];
        }
        return all;
    }
};

} // namespace

int main() {
    for (int who = 0; who < N_THREADS; ++who) {
        graph late(3);
        late.how.who = who;
        late.compute();
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        late.how.late_ms = 150;
        const double before = cpu_ms();
        late.compute();
        std::printf("late %.1f\n", cpu_ms() - before);
    }
    {
        graph idle(3);
        idle.compute();
        const double before = cpu_ms();
        std::this_thread::sleep_for(std::chrono::milliseconds(600));
        std::printf("idle %.1f\n", cpu_ms() - before);
    }
    graph many(200);
    int n_right = 0;
    for (int i = 0; i < 200; ++i) {
        many.how.who     = i;
        many.how.fails   = i % 10 == 7;
        pyllama_spec_set_all_threads(i % 3 != 0);
        ggml_set_zero(many.nodes == nullptr ? nullptr : ggml_graph_node(many.nodes, 0)->src[0]);
        const bool is_done = many.compute();
        n_right += many.how.fails ? !is_done : is_done && many.sum() == 64 * 200;
    }
    std::printf("many %d\n", n_right);
    return 0;
}
