// Call sites of vendor/patches/0023 in the engine's barrier, which every thread of a graph passes after each of its
// operations: who waits there longer than an operation may take gives its core away. Where another program's thread has
// the core of the one that is waited for, spinning would take that thread's turn from it as well.
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

struct pyllama_spec_pool;

// In a barrier, until *n_passed is no longer `before`: the barriers that the pool has passed. Throws as
// pyllama_spec_check_pool() does.
void pyllama_spec_wait_in_barrier(struct pyllama_spec_pool * pool, const int * n_passed, int before);

// After the last thread that arrives has changed *n_passed.
void pyllama_spec_leave_barrier(struct pyllama_spec_pool * pool, const int * n_passed);

#ifdef __cplusplus
}
#endif
