// Prefetches weights from memory.
#pragma once

#include "fill.h"

#if defined(PYLLAMA_SPEC_BLOCKS_AVX2)

namespace pyllama_spec {

// Always inlined: GCC takes a function that only prefetches for one without effect, and removes calls of it.
template <_mm_hint TO> inline PYLLAMA_SPEC_INLINE void prefetch(const void * from, size_t n_bytes) {
    for (size_t i = 0; i < n_bytes; i += 64) {
        _mm_prefetch((const char *) from + i, TO);
    }
}

// Prefetches weights in one stream over all rows of a chunk, since sequential reads from memory are fastest, in
// whatever order a tile uses the rows. If activations fill the first-level cache, weights go only to the second.
struct Stream {
    // PAGES: relies on the processor's own prefetch of sequential reads, which is faster than prefetch instructions but
    // stops at the end of a page. Prefetching the first lines of the next page restarts it.
    enum class To { FIRST_CACHE, SECOND_CACHE, PAGES, NONE };

    const char * at;
    To           to;

    inline PYLLAMA_SPEC_INLINE void advance(size_t n_bytes) {
        if (to == To::FIRST_CACHE) {
            prefetch<_MM_HINT_T0>(at, n_bytes);
        } else if (to == To::SECOND_CACHE) {
            prefetch<_MM_HINT_T1>(at, n_bytes);
        } else if (to == To::PAGES) {
            constexpr uintptr_t PAGE = 4096;
            const uintptr_t last = (uintptr_t) at + n_bytes, page = last / PAGE * PAGE;
            if (page > (uintptr_t) at) {
                prefetch<_MM_HINT_T1>((const char *) page, 8 * 64);
            }
        }
        at += n_bytes;
    }
};

// Says whether the activations of n_rows rows leave room for weights in the first-level cache. Eight rows of 2,048
// numbers do, two of 8,192 do not: the longer a row, the more of it is evicted before the next weight row.
inline bool fit_first_cache(const Job & job, int n_rows) {
    const int64_t room = job.n_groups <= 8 ? 28 << 10 : 24 << 10;
    return n_rows * job.n_groups * (int64_t) sizeof(Group) <= room;
}

}  // namespace pyllama_spec

#endif
