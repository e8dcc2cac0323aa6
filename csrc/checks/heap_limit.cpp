// Limits the C++ heap of a thread on request. It applies to allocations that a template or a schema causes in the
// engine's JSON and Jinja code: 'a' * 10**10, range(10**9), and texts that double.
//
// Why: the template comes with a file, the schema with a request, and no bound at the door knows how long a text will
// be. Without it six of the 20 hostile ones of tests/engine/test_chat_bounds.py took 2.7 to 5.6 GB, as much as the test
// lets them have; with it 70 to 410 MB.

#include "base/guard.h"
#include "checks/work_limit.h"

#include <cstdint>
#include <cstdlib>
#include <new>

#if defined(__linux__)
#include <malloc.h>
#elif defined(__APPLE__)
#include <malloc/malloc.h>
#elif defined(_WIN32)
#include <malloc.h>
#endif

namespace llama_spec {

namespace {

struct heap_state {
    heap_limit * limit   = nullptr;
    int64_t      left    = 0;
    bool         is_over = false;
};

thread_local heap_state t_heap;

int64_t size_of(void * p) {
#if defined(__linux__)
    return (int64_t) malloc_usable_size(p);
#elif defined(__APPLE__)
    return (int64_t) malloc_size(p);
#elif defined(_WIN32)
    return (int64_t) _msize(p);
#else
    return 0;
#endif
}

} // namespace

heap_limit::heap_limit(size_t n_bytes) : outer(t_heap.limit) {
    t_heap = { this, (int64_t) n_bytes, false };
}

heap_limit::~heap_limit() {
    t_heap = { outer, INT64_MAX, false };
}

void heap_limit::check(int code, const char * too_much) const {
    if (t_heap.is_over) {
        fail(code, too_much);
    }
}

} // namespace llama_spec

// Replaces the standard library's operators in this module only: its symbols are hidden.
void * operator new(std::size_t n) {
    auto & heap = llama_spec::t_heap;
    if (heap.limit != nullptr && (heap.left < 0 || n > (uint64_t) heap.left)) {
        heap.is_over = true;
        throw std::bad_alloc();
    }
    void * p = std::malloc(n != 0 ? n : 1);
    if (p == nullptr) {
        throw std::bad_alloc();
    }
    if (heap.limit != nullptr) {
        heap.left -= llama_spec::size_of(p);
    }
    return p;
}

// std::stable_sort uses this one. The sanitizers define their own, whose memory the operator delete below could not
// free.
void * operator new(std::size_t n, const std::nothrow_t &) noexcept {
    try {
        return operator new(n);
    } catch (const std::bad_alloc &) {
        return nullptr;
    }
}

void operator delete(void * p) noexcept {
    if (llama_spec::t_heap.limit != nullptr && p != nullptr) {
        llama_spec::t_heap.left += llama_spec::size_of(p);
    }
    std::free(p);
}

void operator delete(void * p, std::size_t) noexcept {
    operator delete(p);
}
