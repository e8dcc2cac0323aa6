// Limits on the engine's loops whose length a text, a grammar or a vocabulary decides.
//
// Why: no bound at the door knows how long a program runs. Of the hostile templates and schemas of
// tests/engine/test_chat_bounds.py, without the limit of time nested loops have no end, a list in a list takes 64 s, and
// a schema of 3,000 optional properties 43 s; without the limit of depth a list that holds itself overflows the stack.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace llama_spec {

// This thread's own CPU time, which does not depend on other programs.
double own_seconds();

// During its lifetime, the engine's loops on this thread throw after too long a time or a cancellation.
class work_limit {
public:
    // seconds: this thread's own time, which does not depend on other programs. too_long: the message of the error,
    // with code `code`.
    work_limit(double seconds, int code, const char * too_long, const std::atomic<bool> * cancelled = nullptr);
    ~work_limit();
    work_limit(const work_limit &) = delete;
    work_limit & operator=(const work_limit &) = delete;

    // Called by the loops; cheap. look_every: the number of steps between two reads of the clock.
    static void step(uint32_t look_every = 256);

    // Throws the error again if the limit was reached: code in between may have caught it.
    void check() const;

private:
    void look();

    const work_limit * outer;
    double until_s, asked_s;
    int    code;
    const char * too_long;
    bool   is_over = false;
    const std::atomic<bool> * cancelled;
};

// During its lifetime, limits this thread's net C++ heap allocations; beyond the limit they throw std::bad_alloc.
class heap_limit {
public:
    explicit heap_limit(size_t n_bytes);
    ~heap_limit();
    heap_limit(const heap_limit &) = delete;
    heap_limit & operator=(const heap_limit &) = delete;

    // Throws `code` with `too_much` if the limit was reached: streams swallow what their buffers throw.
    void check(int code, const char * too_much) const;

private:
    heap_limit * outer;
};

// The limits for work that depends on untrusted text, and the errors, with code `code`, beyond them.
struct work_bounds {
    double       seconds;       // of this thread's own time
    const char * too_long;
    size_t       n_heap_bytes;  // beyond the allocations at the start
    const char * too_much;
    int          code;
};

// Runs f within both limits. An exception of f passes only if no limit was reached: the engine rewords what it catches.
template <typename F> void within(const work_bounds & bounds, F && f, const std::atomic<bool> * cancelled = nullptr) {
    const work_limit time(bounds.seconds, bounds.code, bounds.too_long, cancelled);
    const heap_limit heap(bounds.n_heap_bytes);
    try {
        f();
    } catch (...) {
        heap.check(bounds.code, bounds.too_much);
        time.check();
        throw;
    }
    heap.check(bounds.code, bounds.too_much);       // a stream swallows what its buffer throws
}

// Runs f on a thread with a stack of n_bytes and waits for it; rethrows its exception here.
void with_deep_stack(size_t n_bytes, const std::function<void()> & f);

} // namespace llama_spec
