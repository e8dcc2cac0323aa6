// Call sites of vendor/patches/0023 in the engine's barrier, which every thread of a graph passes after each operation:
// a thread that waits longer than an operation can take gives up its core. If another program's thread occupies the
// core of the late thread, spinning would delay that other thread further.
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

struct pyllama_spec_pool;

// Waits in a barrier until *n_passed, the pool's number of passed barriers, differs from `before`. Throws as
// pyllama_spec_check_pool() does.
void pyllama_spec_wait_in_barrier(struct pyllama_spec_pool * pool, const int * n_passed, int before);

// Called after the last thread to arrive has changed *n_passed.
void pyllama_spec_leave_barrier(struct pyllama_spec_pool * pool, const int * n_passed);

#ifdef __cplusplus
}
#endif
