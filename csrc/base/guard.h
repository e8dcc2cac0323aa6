// Turns every failure inside the engine into a status code and a message.
#pragma once

#include "base/abi_types.h"

#include <atomic>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

namespace llama_spec {

struct failure : std::runtime_error {
    int code;
    failure(int code, const std::string & what) : std::runtime_error(what), code(code) {}
};

// An assertion or abort inside ggml or llama, thrown by our abort callback.
struct engine_abort : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// The host has no room for a memory of past tokens. Not a std::exception, which the engine would only log.
struct no_room {
    std::string why;
};

// Installs the log and abort callbacks once; later calls are cheap.
void init();

// The message of this thread's last failure.
const std::string & last_error();
void set_last_error(const std::string & message);

// llama_spec_set_log_level() and llama_spec_set_thread_log_level().
void set_log_level(int level);
int  set_thread_log_level(int level);

// Error lines that the engine logged on this thread since the last clear_log().
std::string take_log();
void        clear_log();

// Returns "what", with the engine's logged errors appended.
std::string with_log(const std::string & what);

int report_current_exception();

// Says whether the process is about to end: running decodes stop, and new ones are refused.
bool is_exiting();

// llama_spec_shutdown(), llama_spec_after_fork(), llama_spec_fork_generation(), llama_spec_on_wait().
void    begin_exit(int32_t timeout_ms);
void    note_fork();
int32_t n_forks();
void    set_stop_question(bool (*wants_to_stop)());

// Says whether a waiting thread has to stop: the process ends, or a signal such as that of Ctrl-C has arrived.
bool wants_to_stop();

// Why this thread's call lost a server of layers, "" if it lost none; and whether that was because the call had to
// stop.
std::string lost_server_of_call();
bool        is_stopped_call();

// During its lifetime on a thread, losing a server is no error there.
class freeing {
public:
    freeing();
    ~freeing();
    freeing(const freeing &) = delete;
    freeing & operator=(const freeing &) = delete;

private:
    bool before;
};

// Counts the threads inside calls, so that the end of the process can wait for them.
class inside_call {
public:
    inside_call();
    ~inside_call();

private:
    int32_t generation;     // a call that forks is counted only in the parent
};

// Part of every handle: remembers the process that made it.
class home_process {
public:
    home_process();
    bool is_here() const;
    // Throws LLAMA_SPEC_FORKED in a forked child: the handle's threads do not exist there, and its locks may stay held.
    // what: as in "this context was opened".
    void check(const char * what) const;

private:
    int32_t generation;
};

template <typename F> int guarded(F && body) {
    const inside_call counted;
    try {
        init();
        clear_log();
        std::forward<F>(body)();
        return LLAMA_SPEC_OK;
    } catch (...) {
        return report_current_exception();
    }
}

// What `body` returns, or `otherwise` if it fails.
template <typename T, typename F> T guarded_or(T otherwise, F && body) {
    guarded([&] { otherwise = body(); });
    return otherwise;
}

// The number that `body` returns, or the status of its failure.
template <typename F> int32_t number_or_status(F && body) {
    int32_t out = 0;
    const int rc = guarded([&] { out = body(); });
    return rc == LLAMA_SPEC_OK ? out : rc;
}

[[noreturn]] inline void fail(int code, const std::string & what) {
    throw failure(code, what);
}

inline void require(bool ok, const char * what) {
    if (!ok) {
        fail(LLAMA_SPEC_ARGUMENT, what);
    }
}

// Allows one thread at a time: a second one gets an error.
class in_use {
public:
    in_use(std::atomic<bool> & flag, const char * what) : flag(flag) {
        if (flag.exchange(true, std::memory_order_acquire)) {
            fail(LLAMA_SPEC_BUSY, std::string(what) + " is in use by another thread");
        }
    }
    ~in_use() { flag.store(false, std::memory_order_release); }
    in_use(const in_use &) = delete;
    in_use & operator=(const in_use &) = delete;

private:
    std::atomic<bool> & flag;
};

} // namespace llama_spec
