// Handles exceptions in the threads of a graph. Otherwise the other threads would spin in a barrier for ever, and an
// exception on a worker, where nothing catches it, would end the process.

#include "kernels/thread_pool.h"

#include "kernels/rows.h"
#include "kernels/thread_choice.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <memory>
#include <new>
#include <thread>

namespace {

constexpr size_t SLOT_ALIGNMENT = 128;  // two cache lines, which processors prefetch together

thread_local int t_n_tokens = 0;
thread_local int t_is_stock = 0;
thread_local int t_has_all  = 0;

// Thrown to leave a graph after another thread's error.
struct graph_left {};

void fail(pyllama_spec_pool * pool) {
    auto * error = new std::exception_ptr(std::current_exception());
    void * none  = nullptr;
    if (!__atomic_compare_exchange_n(&pool->error, &none, (void *) error, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
        delete error;
    }
    __atomic_store_n(&pool->has_failed, 1, __ATOMIC_RELEASE);
}

void run(pyllama_spec_pool * pool, void * (*compute)(void *), void * state) {
    try {
        compute(state);
    } catch (const graph_left &) {
    } catch (...) {
        fail(pool);
    }
}

int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
        std::chrono::steady_clock::now().time_since_epoch()).count();
}

pyllama_spec_thread_choice * choice_of(const pyllama_spec_pool * pool) {
    return (pyllama_spec_thread_choice *) pool->choice;
}

void free_scratch(pyllama_spec_pool * pool) {
    ::operator delete(pool->scratch, std::align_val_t(SLOT_ALIGNMENT));
    pool->scratch = nullptr;
    pool->n_slot = pool->n_slots = 0;
}

} // namespace

void pyllama_spec_prepare_pool(pyllama_spec_pool * pool, ggml_cgraph * graph, int n_threads) {
    pool->n_tokens = t_n_tokens;
    pool->is_stock = t_is_stock;
    pool->has_all  = t_has_all;
    size_t n_slot = 0;
    for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
        const ggml_tensor * node = ggml_graph_node(graph, i);
        if (node->op == GGML_OP_MUL_MAT) {
            n_slot = std::max({ n_slot, pyllama_spec_float_scratch(node), pyllama_spec_block_scratch(node) });
        } else if (node->op == GGML_OP_MUL_MAT_ID) {
            n_slot = std::max(n_slot, pyllama_spec_block_scratch(node));
        }
    }
    n_slot = (n_slot + SLOT_ALIGNMENT - 1) / SLOT_ALIGNMENT * SLOT_ALIGNMENT;
    if (n_slot <= pool->n_slot && (size_t) n_threads <= pool->n_slots) {
        return;
    }
    n_slot = std::max(n_slot, pool->n_slot);
    const size_t n_slots = std::max((size_t) n_threads, pool->n_slots);
    char * scratch = (char *) ::operator new(n_slot * n_slots, std::align_val_t(SLOT_ALIGNMENT));
    free_scratch(pool);
    pool->scratch = scratch;
    pool->n_slot  = n_slot;
    pool->n_slots = n_slots;
}

void pyllama_spec_set_n_tokens(int n_tokens) {
    t_n_tokens = n_tokens;
}

int pyllama_spec_has_stock_kernels(void) {
    return t_is_stock;
}

void pyllama_spec_set_stock_kernels(int is_stock) {
    t_is_stock = is_stock;
}

void pyllama_spec_set_all_threads(int has_all) {
    t_has_all = has_all;
}

void pyllama_spec_free_pool(pyllama_spec_pool * pool) {
    free_scratch(pool);
    delete choice_of(pool);
    pool->choice = nullptr;
}

int pyllama_spec_choose_threads(pyllama_spec_pool * pool, ggml_cgraph * graph, int n_threads) {
    pool->slept_ns = 0;
    if (pool->choice == nullptr && n_threads == 1) {
        return 1;
    }
    if (pool->choice == nullptr) {
        pool->choice = new pyllama_spec_thread_choice();
    }
    const uint64_t shape = ((uint64_t) ggml_graph_n_nodes(graph) << 32) + (uint32_t) pool->n_tokens;
    const int n_used = choice_of(pool)->begin(shape, n_threads, now_ns());
    return pool->has_all ? n_threads : n_used;
}

void pyllama_spec_count_graph(pyllama_spec_pool * pool) {
    if (pool->choice != nullptr && !pool->has_all) {
        choice_of(pool)->end(now_ns(), __atomic_load_n(&pool->slept_ns, __ATOMIC_RELAXED));
    }
}

void pyllama_spec_leave_graph(void) {
    throw graph_left();
}

void pyllama_spec_compute_on_worker(pyllama_spec_pool * pool, void * (*compute)(void *), void * state) {
    run(pool, compute, state);
    __atomic_fetch_add(&pool->n_left, 1, __ATOMIC_RELEASE);
}

void pyllama_spec_compute_on_caller(
        pyllama_spec_pool * pool, void * (*compute)(void *), void * state, int n_workers, void * n_arrived) {
    pool->n_sent += n_workers;
    run(pool, compute, state);
    if (!__atomic_load_n(&pool->has_failed, __ATOMIC_ACQUIRE)) {
        return;
    }
    // Waits for all workers: they read the graph and its plan in the caller's frames, and one may wake up only now.
    while (__atomic_load_n(&pool->n_left, __ATOMIC_ACQUIRE) != pool->n_sent) {
        std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    const std::unique_ptr<std::exception_ptr> error((std::exception_ptr *) pool->error);
    pool->error      = nullptr;
    pool->has_failed = 0;
    __atomic_store_n((int *) n_arrived, 0, __ATOMIC_RELAXED);
    std::rethrow_exception(*error);
}
