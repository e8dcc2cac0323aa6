#include "checks/work_limit.h"

#include "base/guard.h"
#include "checks/llama-spec-bounds.h"

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <exception>
#include <mutex>
#include <string>

#include <csignal>
#include <pthread.h>

namespace llama_spec {

namespace {

constexpr double   ASK_EVERY_S    = 0.1;    // fast enough for a user who presses Ctrl-C

// The rest of a deep stack is reserved for freeing long chains of values.
constexpr uintptr_t MAX_DEPTH_BYTES = 8u << 20;

thread_local work_limit * t_limit = nullptr;
thread_local uintptr_t    t_stack_begin = 0;     // set on a thread with a deep stack
thread_local uint32_t     t_n_steps = 0;

// A call on a thread with a deep stack. The waiting thread checks for signals, which only Python's own threads see.
struct deep_call {
    const std::function<void()> * f;
    std::exception_ptr      error;
    std::atomic<bool>       is_bounded{ false };    // the call can stop: it has made a work_limit
    std::atomic<bool>       is_to_stop{ false };
    std::mutex              mutex;
    std::condition_variable ended;
    bool                    has_ended = false;

    void run() {
        try {
            (*f)();
        } catch (...) {
            error = std::current_exception();
        }
        const std::lock_guard<std::mutex> lock(mutex);
        has_ended = true;
        ended.notify_one();
    }

    void wait() {
        std::unique_lock<std::mutex> lock(mutex);
        while (!ended.wait_for(lock, std::chrono::duration<double>(ASK_EVERY_S), [&] { return has_ended; })) {
            lock.unlock();
            if (is_bounded && wants_to_stop()) {
                is_to_stop = true;
            }
            lock.lock();
        }
    }
};

thread_local deep_call * t_deep = nullptr;

void * run_deep(void * data) {
    t_deep = static_cast<deep_call *>(data);
    t_stack_begin = reinterpret_cast<uintptr_t>(&data);
    t_deep->run();
    return nullptr;
}

} // namespace

double own_seconds() {
    timespec now = {};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double) now.tv_sec + 1e-9 * (double) now.tv_nsec;
}

work_limit::work_limit(double seconds, int code, const char * too_long, const std::atomic<bool> * cancelled) :
    outer(t_limit), until_s(own_seconds() + seconds), asked_s(own_seconds()), code(code), too_long(too_long), cancelled(cancelled) {
    t_limit = this;
    if (t_deep != nullptr) {
        t_deep->is_bounded = true;
    }
}

work_limit::~work_limit() {
    t_limit = const_cast<work_limit *>(outer);
}

void work_limit::step(uint32_t look_every) {
    if (++t_n_steps % look_every == 0 && t_limit != nullptr) {
        t_limit->look();
    }
}

void work_limit::check() const {
    if (is_over) {
        fail(code, too_long);
    }
}

void work_limit::look() {
    if ((cancelled != nullptr && cancelled->load(std::memory_order_relaxed)) || is_exiting()) {
        fail(LLAMA_SPEC_CANCELLED, "cancelled");
    }
    const double now = own_seconds();
    if (now > until_s) {
        is_over = true;
        fail(code, too_long);
    }
    if (now > asked_s + ASK_EVERY_S) {
        asked_s = now;
        if (t_deep != nullptr ? t_deep->is_to_stop.load() : wants_to_stop()) {
            fail(LLAMA_SPEC_CANCELLED, "interrupted");
        }
    }
}

void with_deep_stack(size_t n_bytes, const std::function<void()> & f) {
    deep_call call;
    call.f = &f;
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    const size_t page = 1 << 16;    // a multiple of any machine's page size
    int rc = pthread_attr_setstacksize(&attr, (n_bytes + page - 1) / page * page);
    pthread_t thread;
    if (rc == 0) {
#ifdef _WIN32
        rc = pthread_create(&thread, &attr, run_deep, &call);
#else
        // Blocks signals on the new thread: Python handles them on its own threads.
        sigset_t all, before;
        sigfillset(&all);
        for (int fault : { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT }) {
            sigdelset(&all, fault);
        }
        pthread_sigmask(SIG_SETMASK, &all, &before);
        rc = pthread_create(&thread, &attr, run_deep, &call);
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
#endif
    }
    pthread_attr_destroy(&attr);
    if (rc != 0) {
        fail(LLAMA_SPEC_MEMORY, "a stack of " + std::to_string(n_bytes >> 20) + " MiB cannot be had (" + std::strerror(rc) +
                "), which so long a stretch of text without white space needs");
    }
    call.wait();
    pthread_join(thread, nullptr);
    if (call.error) {
        std::rethrow_exception(call.error);
    }
}

} // namespace llama_spec

void llama_spec_on_step() {
    llama_spec::work_limit::step();
}

void llama_spec_on_slab() {
    if (llama_spec::wants_to_stop()) {
        llama_spec::fail(LLAMA_SPEC_CANCELLED, "interrupted");
    }
}

void llama_spec_on_statement() {
    llama_spec::work_limit::step(16);
    const char here = 0;
    const uintptr_t begin = llama_spec::t_stack_begin, at = reinterpret_cast<uintptr_t>(&here);
    if (begin != 0 && begin - at > llama_spec::MAX_DEPTH_BYTES) {
        llama_spec::fail(LLAMA_SPEC_UNSUPPORTED, "nested too deeply, or without an end");
    }
}
