// Bounds on what the engine computes in loops that a text, a grammar or a vocabulary decides.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace llama_spec {

// What this thread has computed, which other programs do not change.
double own_seconds();

// While one lives, the engine's loops on this thread stop by an exception once they took too long or were cancelled.
class work_limit {
public:
    // seconds: of this thread's own time, which other programs do not change. too_long: the error then, of code `code`.
    work_limit(double seconds, int code, const char * too_long, const std::atomic<bool> * cancelled = nullptr);
    ~work_limit();
    work_limit(const work_limit &) = delete;
    work_limit & operator=(const work_limit &) = delete;

    // Called by the loops; cheap. look_every: of how many steps one reads the clock.
    static void step(uint32_t look_every = 256);

    // Throws its error if it was met already: what threw through code that catches all.
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

// While one lives, what this thread takes from the heap in C++, less what it gives back, is bounded: std::bad_alloc.
class heap_limit {
public:
    explicit heap_limit(size_t n_bytes);
    ~heap_limit();
    heap_limit(const heap_limit &) = delete;
    heap_limit & operator=(const heap_limit &) = delete;

    // Throws `code` and `too_much` if more was asked for: streams swallow what their buffers throw.
    void check(int code, const char * too_much) const;

private:
    heap_limit * outer;
};

// What a piece of work that strangers' texts decide about may take, and the errors, of code `code`, where it takes more.
struct work_bounds {
    double       seconds;       // of this thread's own time
    const char * too_long;
    size_t       n_heap_bytes;  // beyond what it had
    const char * too_much;
    int          code;
};

// Runs f within both bounds. What f throws is thrown where no bound was met: the engine rewords what it catches.
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

// Runs f on a thread with a stack of so many bytes and waits for it; what it throws is thrown here.
void with_deep_stack(size_t n_bytes, const std::function<void()> & f);

} // namespace llama_spec
