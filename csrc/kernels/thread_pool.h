// Call sites of vendor/patches/0005 in the engine's thread pool: an exception on any of its threads, an assertion of
// the engine included, ends the graph on all of them and reaches the caller; and each has a place for our kernels.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_cgraph;

// The first member of a pool; zero when it is made.
struct pyllama_spec_pool {
    int    has_failed;  // whoever waits in a barrier of this graph leaves it, since one will never come
    int    n_sent;      // to how many workers graphs were given
    int    n_left;      // how many of them have left theirs
    void * error;       // the first exception
    char * scratch;     // what our kernels unpack into: n_slot bytes for each thread
    size_t n_slot, n_slots;
    int    n_tokens;    // of the graph; 0 where it is unknown
    int    is_stock;    // the engine's own kernels compute it, for comparisons
    int    has_all;     // all threads compute it, even where fewer are faster
    int    n_asleep;    // threads that sleep in a barrier
    int64_t slept_ns;   // of all threads, in the barriers of this graph
    void * choice;      // how many threads compute it
};

// On the caller's thread, before it computes a graph: how many tokens it is for. 0 when it has.
void pyllama_spec_set_n_tokens(int n_tokens);

// On the caller's thread, from its next graph on: whether products and attention are left to the engine's own kernels.
void pyllama_spec_set_stock_kernels(int is_stock);

// The same: whether all threads compute graphs, even where fewer are faster.
void pyllama_spec_set_all_threads(int has_all);

// On the caller's thread, before a graph is given to the workers: scratch for its products. Throws std::bad_alloc.
void pyllama_spec_prepare_pool(struct pyllama_spec_pool * pool, struct ggml_cgraph * graph, int n_threads);
void pyllama_spec_free_pool(struct pyllama_spec_pool * pool);

// After that: how many of n_threads compute it (thread_choice.h); and once it is computed.
int  pyllama_spec_choose_threads(struct pyllama_spec_pool * pool, struct ggml_cgraph * graph, int n_threads);
void pyllama_spec_count_graph(struct pyllama_spec_pool * pool);

// Graphs that more than one thread could have computed, and those of them that fewer than all did.
void pyllama_spec_count_threads(const struct pyllama_spec_pool * pool, int64_t * n_graphs, int64_t * n_with_fewer);

// In place of compute(state) on a worker thread. It comes back for the next graph whatever happened.
void pyllama_spec_compute_on_worker(struct pyllama_spec_pool * pool, void * (*compute)(void *), void * state);

// The same on the caller's thread. Throws what any thread threw, once no worker is inside the graph any more and the
// pool is fit for the next one. n_arrived: how many threads wait in the pool's barrier.
void pyllama_spec_compute_on_caller(
    struct pyllama_spec_pool * pool, void * (*compute)(void *), void * state, int n_workers, void * n_arrived);

// Throws, through the kernel that waits.
void pyllama_spec_leave_graph(void);

static inline void pyllama_spec_check_pool(const struct pyllama_spec_pool * pool) {
    if (__atomic_load_n(&pool->has_failed, __ATOMIC_RELAXED)) {
        pyllama_spec_leave_graph();
    }
}

#ifdef __cplusplus
}
#endif
