#include "rpc/link.h"
#include "rpc/of_thread.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <system_error>

#ifdef _WIN32
#include <winsock2.h>
#define SHUT_RDWR SD_BOTH
#else
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>
#endif

namespace llama_spec {

namespace {

// A server answers the first message at once; otherwise it is serving another client, or is no RPC server.
constexpr int32_t HELLO_S = 10;
// A waiting thread checks every SLICE whether to stop, and after Ctrl-C still waits GRACE for an answer: the server may
// have almost finished, and giving up a connection means sending the weights again.
constexpr auto SLICE = std::chrono::milliseconds(100);
constexpr auto GRACE = std::chrono::milliseconds(900);
// Detects a machine that has disappeared after some 30 s, however long its answers may take.
constexpr int KEEP_IDLE_S = 15, KEEP_INTERVAL_S = 5, KEEP_COUNT = 3;

using clock = std::chrono::steady_clock;

std::atomic<int32_t> g_timeout_s{ 300 };
std::atomic<bool (*)()> g_stop_asker{ nullptr };

OF_THREAD(std::string, t_lost);
thread_local bool        t_is_freeing = false;
thread_local int         t_error = -1;  // errno of the system; -1 if it reported none
// For this call: when the program wanted it to stop, and whether a connection was given up for that.
thread_local bool              t_is_stopping = false, t_has_given_up = false;
thread_local clock::time_point t_stopped_at;
// For a connecting thread: its deadline, and that it connects.
thread_local bool              t_is_connecting = false;
thread_local clock::time_point t_connect_until;

bool is_stopping() {
    const auto wants_to_stop = g_stop_asker.load();
    if (!t_is_stopping && wants_to_stop != nullptr && wants_to_stop()) {
        t_is_stopping = true;
        t_stopped_at  = clock::now();
    }
    return t_is_stopping;
}

template <typename T> void set_option(int fd, int level, int name, const T & value) {
    setsockopt(fd, level, name, (const char *) &value, sizeof(value));
}

void set_timeout(int fd, std::chrono::milliseconds time) {
#ifdef _WIN32
    const DWORD out = (DWORD) time.count();
#else
    timeval out = {};
    out.tv_sec  = (decltype(out.tv_sec)) (time.count() / 1000);
    out.tv_usec = (decltype(out.tv_usec)) (time.count() % 1000 * 1000);
#endif
    set_option(fd, SOL_SOCKET, SO_RCVTIMEO, out);
    set_option(fd, SOL_SOCKET, SO_SNDTIMEO, out);
}

// The error of the last call on a socket; what is told apart here is an errno.
int socket_error() {
#ifdef _WIN32
    const int error = WSAGetLastError();
    return error == WSAETIMEDOUT || error == WSAEWOULDBLOCK ? EAGAIN : error == WSAECONNRESET ? ECONNRESET : error;
#else
    return errno;
#endif
}

bool is_slow(int error) {
    return error == EAGAIN || error == EWOULDBLOCK || error == EINPROGRESS || error == EALREADY;
}

// Identifies the process: a forked child inherits its parent's connections, but has another id.
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
    if (is_slow(t_error)) {
        return "it did not answer in time";
    }
    return std::system_category().message(t_error);
}

template <typename F> void wait(F & result, connection & from) {
    try {
        while (result.wait_for(SLICE) != std::future_status::ready) {
            if (is_stopping() && clock::now() >= t_stopped_at + GRACE) {
                t_has_given_up = true;
                from.give_up();
            }
        }
        result.get();
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
    t_is_stopping  = false;
    t_has_given_up = false;
}

void set_stop_asker(bool (*wants_to_stop)()) {
    g_stop_asker.store(wants_to_stop);
}

bool has_given_up() {
    return t_has_given_up;
}

void set_server_timeout(int32_t seconds) {
    g_timeout_s.store(seconds);
}

void lose_server(const std::string & endpoint, const std::string & why) {
    const int error = t_error;
    t_is_connecting = false;
    t_lost = "the server " + endpoint + " " + why + (error > 0 ? ": " + reason() : "");
    t_error = -1;
    throw lost_server(t_lost);
}

void note_closed() {
    t_error = 0;
}

bool goes_on() {
    const int error = socket_error();
    bool goes_on = error == EINTR || is_slow(error);
    if (goes_on && t_is_connecting) {
        t_has_given_up = t_has_given_up || is_stopping();
        goes_on = !t_has_given_up && clock::now() < t_connect_until;
    } else {
        goes_on = error == EINTR;
    }
    t_error = goes_on ? -1 : error;
    return goes_on;
}

void before_connect(int fd) {
    t_error = -1;
    t_is_connecting = true;
    t_connect_until = clock::now() + std::chrono::seconds(std::min(HELLO_S, g_timeout_s.load()));
    set_timeout(fd, SLICE);
    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
#ifdef TCP_KEEPIDLE
    set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, KEEP_IDLE_S);
    set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, KEEP_INTERVAL_S);
    set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, KEEP_COUNT);
#endif
}

bool set_freeing(bool is_freeing) {
    const bool before = t_is_freeing;
    t_is_freeing = is_freeing;
    return before;
}

void connection::begin(int to) {
    std::lock_guard<std::mutex> lock(mutex);
    fd = to;
}

void connection::end() {
    begin(-1);
}

void connection::give_up() {
    std::lock_guard<std::mutex> lock(mutex);
    was_given_up.store(true);
    if (fd >= 0) {
        shutdown(fd, SHUT_RDWR);
    }
}

answer::answer(std::future<void> result, std::shared_ptr<connection> from)
    : result(result.share()), from(std::move(from)) {}

void answer::wait() {
    llama_spec::wait(result, *from);
}

server_link::server_link() : generation(process()), socket(std::make_shared<connection>()) {}

server_link::~server_link() {
    socket->end();
}

void server_link::begin(const std::string & to, int fd) {
    endpoint = to;
    t_is_connecting = false;
    set_timeout(fd, std::chrono::seconds(g_timeout_s.load()));
    socket->begin(fd);
}

void server_link::begin_thread() {
#ifndef _WIN32
    sigset_t all;
    sigfillset(&all);
    // A fault signal must reach the thread that caused it.
    for (int kind : { SIGSEGV, SIGBUS, SIGFPE, SIGILL }) {
        sigdelset(&all, kind);
    }
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
#endif
}

bool server_link::note(bool is_ok) {
    if (!is_ok && !is_failed.load(std::memory_order_relaxed)) {
        const std::string why = socket->is_given_up() ? "it did not answer until the program was interrupted" : reason();
        error = std::make_exception_ptr(lost_server("the server " + endpoint + " was lost: " + why +
                "; close the model and open it again"));
        socket->end();  // the descriptor is closed next
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

void server_link::wait_for(std::future<void> result) const {
    wait(result, *socket);
}

answer server_link::answer_of(std::promise<void> & completion) const {
    return answer(completion.get_future(), socket);
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

} // namespace llama_spec
