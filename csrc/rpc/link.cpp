#include "rpc/link.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#ifndef _WIN32
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>
#endif

namespace llama_spec {

namespace {

// A server answers the first message at once; one that does not serves somebody else, or is none.
constexpr int32_t HELLO_S = 10;
// A machine that has gone is noticed after some 30 s, however long its answers may take.
constexpr int KEEP_IDLE_S = 15, KEEP_INTERVAL_S = 5, KEEP_COUNT = 3;

std::atomic<int32_t> g_timeout_s{ 300 };

thread_local std::string t_lost;
thread_local bool        t_is_freeing = false;
thread_local int         t_error = -1;  // of the system; -1 where it reported none

#ifndef _WIN32
void set_timeout(int fd, int32_t seconds) {
    timeval time = {};
    time.tv_sec = seconds;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time));
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof(time));
}
#endif

// Processes differ in it, and a child inherits its parent's.
int32_t process() {
#ifdef _WIN32
    return 0;
#else
    return (int32_t) getpid();
#endif
}

std::string reason() {
    if (t_error < 0) {
        return "it gave an answer that is none of the engine's";
    }
    if (t_error == 0 || t_error == EPIPE || t_error == ECONNRESET) {
        return "it closed the connection";
    }
    if (t_error == EAGAIN || t_error == EWOULDBLOCK || t_error == EINPROGRESS) {
        return "it did not answer in time";
    }
    return std::strerror(t_error);
}

template <typename F> void wait(F && get) {
    try {
        get();
    } catch (const lost_server & e) {
        t_lost = e.what();
        if (!t_is_freeing) {
            throw;
        }
    }
}

} // namespace

const std::string & seen_lost_server() {
    return t_lost;
}

void forget_lost_server() {
    t_lost.clear();
}

void set_server_timeout(int32_t seconds) {
    g_timeout_s.store(seconds);
}

void lose_server(const std::string & endpoint, const std::string & why) {
    const int error = t_error;
    t_lost = "the server " + endpoint + " " + why + (error > 0 ? ": " + reason() : "");
    t_error = -1;
    throw lost_server(t_lost);
}

void note_socket_error(int error) {
    t_error = error;
}

bool was_interrupted() {
    return errno == EINTR;
}

void before_connect(int fd) {
    t_error = -1;
#ifndef _WIN32
    set_timeout(fd, std::min(HELLO_S, g_timeout_s.load()));
    const int on = 1;
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
#ifdef TCP_KEEPIDLE
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &KEEP_IDLE_S, sizeof(int));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &KEEP_INTERVAL_S, sizeof(int));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &KEEP_COUNT, sizeof(int));
#endif
#else
    (void) fd;
#endif
}

void after_hello(int fd) {
#ifndef _WIN32
    set_timeout(fd, g_timeout_s.load());
#else
    (void) fd;
#endif
}

bool set_freeing(bool is_freeing) {
    const bool before = t_is_freeing;
    t_is_freeing = is_freeing;
    return before;
}

server_link::server_link() : generation(process()) {}

void server_link::name(const std::string & to) {
    endpoint = to;
}

void server_link::begin_thread() {
#ifndef _WIN32
    sigset_t all;
    sigfillset(&all);
    // A fault belongs to the thread that makes it.
    for (int kind : { SIGSEGV, SIGBUS, SIGFPE, SIGILL }) {
        sigdelset(&all, kind);
    }
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
#endif
}

bool server_link::note(bool is_ok) {
    if (!is_ok && !is_failed.load(std::memory_order_relaxed)) {
        error = std::make_exception_ptr(lost_server("the server " + endpoint + " was lost: " + reason() +
                "; close the model and open it again"));
        is_failed.store(true, std::memory_order_release);
    }
    t_error = -1;
    return is_ok;
}

bool server_link::is_lost() const {
    return is_failed.load(std::memory_order_acquire) || generation != process();
}

void server_link::complete(std::promise<void> & completion) const {
    if (is_failed.load(std::memory_order_acquire)) {
        completion.set_exception(error);
    } else {
        completion.set_value();
    }
}

void server_link::check(bool is_ok, const char * what) const {
    if (!is_ok) {
        lose_server(endpoint, std::string("was lost: it gave ") + what + " that no server has");
    }
}

bool kept_graphs::has(uint64_t number) {
    if (number == 0) {
        return false;
    }
    if (live.count(number) > 0) {
        return true;
    }
    if (numbers.size() >= n_max) {
        numbers.clear();
        live.clear();
    }
    numbers.insert(number);
    live.insert(number);
    return false;
}

void wait_for(std::future<void> answer) {
    wait([&] { answer.get(); });
}

void wait_for(std::shared_future<void> & answer) {
    wait([&] { answer.get(); });
}

} // namespace llama_spec
