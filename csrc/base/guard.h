// Turns whatever goes wrong inside the engine into a code and a message.
#pragma once

#include "base/abi_types.h"
#include "base/fault_net.h"

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

// The host has no room for a memory of past tokens. Thrown through the engine, which would turn a std::exception into a
// line of its log.
struct no_room {
    std::string why;
};

// Sets up the log and abort callbacks once; cheap afterwards.
void init();

// The message of this thread's last failure.
const std::string & last_error();
void set_last_error(const std::string & message);

// Lines at or above the level are printed: of the process, or of this thread alone, where -1 follows the process's.
// The thread's returns what was set before.
void set_log_level(int level);
int  set_thread_log_level(int level);

// Error lines that the engine logged on this thread since the last call of clear_log().
std::string take_log();
void        clear_log();

// "what" and, if the engine logged errors, what it said.
std::string with_log(const std::string & what);

int report_current_exception();

// Whether the process is about to end: decodes stop, and new ones are refused.
bool is_exiting();

// From here on it is; waits until no thread is inside a call, or for the timeout.
void begin_exit(int32_t timeout_ms);

// In a forked child, before any other call; and how many forks lie behind this process.
void    note_fork();
int32_t n_forks();

// What wants_to_stop() asks beside.
void set_stop_question(bool (*wants_to_stop)());

// Whether what a thread waits for is to end: the process does, or a signal has come, such as that of Ctrl-C.
bool wants_to_stop();

// Why this thread's call lost a server of layers, "" where it lost none; and whether that was because the call was to
// end.
std::string lost_server_of_call();
bool        is_stopped_call();

// While one lives on a thread, a server that is lost is no error there.
class freeing {
public:
    freeing();
    ~freeing();
    freeing(const freeing &) = delete;
    freeing & operator=(const freeing &) = delete;

private:
    bool before;
};

// Counts the calls that threads are inside of, so that the end of the process can wait for them.
class inside_call {
public:
    inside_call();
    ~inside_call();

private:
    int32_t generation;     // a call that forks is counted in the parent alone
};

// Part of every handle: the process that it was made in.
class home_process {
public:
    home_process();
    bool is_here() const;
    // Throws LLAMA_SPEC_FORKED in a forked child: threads that the handle counts on are not there, and locks may be
    // held for ever. what: as in "this context was opened".
    void check(const char * what) const;

private:
    int32_t generation;
};

template <typename F> int guarded(F && body) {
    const inside_call counted;
    const fault_net net;
    try {
        init();
        clear_log();
        std::forward<F>(body)();
        return LLAMA_SPEC_OK;
    } catch (...) {
        return report_current_exception();
    }
}

[[noreturn]] inline void fail(int code, const std::string & what) {
    throw failure(code, what);
}

inline void require(bool ok, const char * what) {
    if (!ok) {
        fail(LLAMA_SPEC_ARGUMENT, what);
    }
}

// One thread at a time: a second one is told so instead of corrupting the first one's work.
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
