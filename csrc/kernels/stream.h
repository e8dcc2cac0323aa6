// How weights are fetched on their way from memory.
#pragma once

#include "fill.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__) && defined(__BMI2__)

namespace pyllama_spec {

// Always inlined: GCC takes a function that only does this for one that does nothing, and leaves calls of it out.
inline PYLLAMA_SPEC_INLINE void prefetch(const void * from, size_t n_bytes) {
    for (size_t i = 0; i < n_bytes; i += 64) {
        _mm_prefetch((const char *) from + i, _MM_HINT_T0);
    }
}

// Into the second cache.
inline PYLLAMA_SPEC_INLINE void prefetch_far(const void * from, size_t n_bytes) {
    for (size_t i = 0; i < n_bytes; i += 64) {
        _mm_prefetch((const char *) from + i, _MM_HINT_T1);
    }
}

// Weights are fetched in one stream over all rows of a chunk, since memory is read fastest so, whatever order the rows of a
// tile use them in; and past the first cache where activations fill that.
struct Stream {
    // PAGES: the processor fetches ahead by itself what is read in order, faster than it is told to, but stops at the end
    // of a page. The first lines of the next one set it going again.
    enum class To { FIRST_CACHE, SECOND_CACHE, PAGES, NONE };

    const char * at;
    To           to;

    inline PYLLAMA_SPEC_INLINE void advance(size_t n_bytes) {
        if (to == To::FIRST_CACHE) {
            prefetch(at, n_bytes);
        } else if (to == To::SECOND_CACHE) {
            prefetch_far(at, n_bytes);
        } else if (to == To::PAGES) {
            constexpr uintptr_t PAGE = 4096;
            const uintptr_t last = (uintptr_t) at + n_bytes, page = last / PAGE * PAGE;
            if (page > (uintptr_t) at) {
                prefetch_far((const char *) at + (page - (uintptr_t) at), 8 * 64);
            }
        }
        at += n_bytes;
    }
};

// Whether the activations of so many rows leave the first cache room for weights. Eight of 2,048 numbers do, two of 8,192
// do not: the longer a row, the more of it is gone before the next weight row comes.
inline bool fit_first_cache(const Job & job, int n_rows) {
    const int64_t room = job.n_groups <= 8 ? 28 << 10 : 24 << 10;
    return n_rows * job.n_groups * (int64_t) sizeof(Group) <= room;
}

}  // namespace pyllama_spec

#endif
