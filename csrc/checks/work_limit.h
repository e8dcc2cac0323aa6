// Bounds on what the engine computes in loops that a text, a grammar or a vocabulary decides.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>

namespace llama_spec {

// While one lives, the engine's loops on this thread stop by an exception once they took too long or were cancelled.
class work_limit {
public:
    // seconds: of this thread's own time, which other programs do not change. too_long: the error then, of code `code`.
    work_limit(double seconds, int code, const char * too_long, const std::atomic<bool> * cancelled = nullptr);
    ~work_limit();
    work_limit(const work_limit &) = delete;
    work_limit & operator=(const work_limit &) = delete;

    // Called by the loops; cheap.
    static void step();

private:
    void look();

    const work_limit * outer;
    double until_s, asked_s;
    int    code;
    const char * too_long;
    const std::atomic<bool> * cancelled;
};

// Runs f on a thread with a stack of so many bytes and waits for it; what it throws is thrown here.
void with_deep_stack(size_t n_bytes, const std::function<void()> & f);

} // namespace llama_spec
