// Call sites of vendor/patches/0005 in the engine's thread pool. An exception on any of its threads, including an
// assertion of the engine, ends the graph on all of them and reaches the caller. Each thread also has scratch for our
// kernels.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_cgraph;

// The first member of a pool; zeroed when the pool is made.
struct pyllama_spec_pool {
    int    has_failed;  // threads that wait in a barrier of this graph leave it, since it will never complete
    int    n_sent;      // how often a worker received a graph
    int    n_left;      // how often a worker left one
    void * error;       // the first exception
    char * scratch;     // where our kernels unpack: n_slot bytes for each thread
    size_t n_slot, n_slots;
    int    n_tokens;    // of the graph; 0 if unknown
    int    is_stock;    // use the engine's own kernels, for comparisons
    int    has_all;     // use all threads, even if fewer are faster
    int    n_asleep;    // threads that sleep in a barrier
    int64_t slept_ns;   // sum over all threads, in this graph's barriers
    void * choice;      // chooses how many threads compute the graph
};

// Sets, on the caller's thread, the number of tokens of the graphs that it computes next; 0 afterwards.
void pyllama_spec_set_n_tokens(int n_tokens);

// Sets, on the caller's thread, whether products and attention use the engine's own kernels from its next graph on.
void pyllama_spec_set_stock_kernels(int is_stock);
int  pyllama_spec_has_stock_kernels(void);

// The same: whether all threads compute graphs, even if fewer are faster.
void pyllama_spec_set_all_threads(int has_all);

// Called on the caller's thread before workers get a graph: allocates scratch for its products. Throws std::bad_alloc.
void pyllama_spec_prepare_pool(struct pyllama_spec_pool * pool, struct ggml_cgraph * graph, int n_threads);
void pyllama_spec_free_pool(struct pyllama_spec_pool * pool);

// Called after that: returns how many of n_threads compute it (thread_choice.h). The other is called after the graph.
int  pyllama_spec_choose_threads(struct pyllama_spec_pool * pool, struct ggml_cgraph * graph, int n_threads);
void pyllama_spec_count_graph(struct pyllama_spec_pool * pool);

// Replaces compute(state) on a worker thread. It returns for the next graph even after a failure.
void pyllama_spec_compute_on_worker(struct pyllama_spec_pool * pool, void * (*compute)(void *), void * state);

// The same on the caller's thread. Throws the exception of any thread after all workers have left the graph and the
// pool is ready for the next one. n_arrived: how many threads wait in the pool's barrier.
void pyllama_spec_compute_on_caller(
    struct pyllama_spec_pool * pool, void * (*compute)(void *), void * state, int n_workers, void * n_arrived);

// Throws, through the kernel that waits, if another thread has failed.
void pyllama_spec_leave_graph(void);

static inline void pyllama_spec_check_pool(const struct pyllama_spec_pool * pool) {
    if (__atomic_load_n(&pool->has_failed, __ATOMIC_RELAXED)) {
        pyllama_spec_leave_graph();
    }
}

#ifdef __cplusplus
}
#endif
