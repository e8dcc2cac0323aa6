#include "kernels/barrier_wait.h"

#include "kernels/thread_pool.h"

#include <chrono>
#include <cstdint>
#include <thread>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#endif

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace {

// Threads of one graph that have their own cores arrive within microseconds of each other. Sleeping and waking takes
// some ten microseconds, and a time slice of another program's thread one to four thousand.
constexpr int64_t SPIN_NS  = 50'000;
constexpr int N_PAUSES     = 32;        // between two reads of the clock
// A failing thread does not wake the threads that wait, so these sleep only this long.
constexpr int64_t SLEEP_NS = 5'000'000;

void relax() {
#if defined(__x86_64__) || defined(_M_X64)
    _mm_pause();
#elif defined(__aarch64__) && !defined(_MSC_VER)
    __asm__ volatile("yield" ::: "memory");
#endif
}

int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
        std::chrono::steady_clock::now().time_since_epoch()).count();
}

int load(const int * value) {
    return __atomic_load_n(value, __ATOMIC_RELAXED);
}

void sleep_while(const int * value, int before) {
#if defined(__linux__)
    const struct timespec most = { 0, SLEEP_NS };
    syscall(SYS_futex, value, FUTEX_WAIT_PRIVATE, before, &most, nullptr, 0);
#else
    (void) value;
    (void) before;
    std::this_thread::yield();
#endif
}

// The destructor also runs if an exception ends the wait.
struct counted_sleeper {
    pyllama_spec_pool * pool;
    int64_t             begun = now_ns();
    explicit counted_sleeper(pyllama_spec_pool * pool) : pool(pool) {
        __atomic_fetch_add(&pool->n_asleep, 1, __ATOMIC_SEQ_CST);
    }
    ~counted_sleeper() {
        __atomic_fetch_sub(&pool->n_asleep, 1, __ATOMIC_SEQ_CST);
        __atomic_fetch_add(&pool->slept_ns, now_ns() - begun, __ATOMIC_RELAXED);
    }
};

} // namespace

void pyllama_spec_wait_in_barrier(pyllama_spec_pool * pool, const int * n_passed, int before) {
    int64_t begun = 0;
    for (int i = 1; load(n_passed) == before; ++i) {
        pyllama_spec_check_pool(pool);
        relax();
        if (i % N_PAUSES == 0) {
            const int64_t now = now_ns();
            begun = begun == 0 ? now : begun;
            if (now - begun > SPIN_NS) {
                break;
            }
        }
    }
    if (load(n_passed) != before) {
        return;
    }
    const counted_sleeper sleeper(pool);
    while (load(n_passed) == before) {
        pyllama_spec_check_pool(pool);
        sleep_while(n_passed, before);
    }
}

void pyllama_spec_leave_barrier(pyllama_spec_pool * pool, const int * n_passed) {
#if defined(__linux__)
    // A sleeper is counted before the kernel compares the value, and the value changes before this read, so no sleeper
    // is missed.
    if (__atomic_load_n(&pool->n_asleep, __ATOMIC_SEQ_CST) != 0) {
        syscall(SYS_futex, n_passed, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
    }
#else
    (void) pool;
    (void) n_passed;
#endif
}
