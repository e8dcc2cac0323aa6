// What a failing server is to the engine's client: the engine asserts, on a thread of its own, where nothing can catch
// it. Here the failure travels to whoever waits for the answer, as an exception, and everything that is sent to the
// server after it fails at once. Patch 0016 has the call sites.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <future>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <unordered_set>
#include <vector>

namespace llama_spec {

// A server of layers that cannot be reached, has gone, is silent, or answers nonsense.
struct lost_server : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// What was thrown on this thread since the last forget_lost_server(); empty if nothing. The engine catches exceptions
// while it loads, and says "failed" without their type.
const std::string & seen_lost_server();
void forget_lost_server();

// For connections that are opened from now on: how long an answer may take. Servers say nothing while they compute.
void set_server_timeout(int32_t seconds);

[[noreturn]] void lose_server(const std::string & endpoint, const std::string & why);

// Of a call of the system's on a connection, on this thread: its errno, or 0 where the other side had closed it.
void note_socket_error(int error);

// Of a call that failed so: whether it is to be made again. A signal has interrupted it, or it has waited for its slice of
// time and there are more. n_done of size bytes are through.
bool goes_on(size_t n_done, size_t size);

// A socket that is about to connect, on the thread that will wait for it.
void before_connect(int fd);

// Who waits on a thread of the program's asks this now and then: true ends the wait, as at Ctrl-C.
void set_stop_asker(bool (*wants_to_stop)());
// Whether a connection was given up for that in this call.
bool has_given_up();

// While one lives, this thread serves the client at the other end of fd: between messages it may be silent for ever,
// within one for so many seconds.
class serving {
public:
    serving(int fd, int32_t seconds);
    ~serving();
    serving(const serving &) = delete;
    serving & operator=(const serving &) = delete;
};

// What two servers compute together would let a client make one listen on all addresses, or connect to any.
constexpr bool REFUSES_PAIRS = true;

// Whether the numbers of elements and of bytes are any: such as wrap around pass every comparison with a buffer's size.
bool can_be_counted(const uint32_t * ne, const uint32_t * nb);

// Reads so many bytes into out, whose memory grows with what is there: a size is only what a client claims.
template <typename F> bool receive(std::vector<uint8_t> & out, uint64_t size, F && read) {
    constexpr uint64_t FIRST = 1 << 20;
    out.clear();
    for (uint64_t at = 0; at < size;) {
        const uint64_t n = std::min(size - at, std::max(at, FIRST));
        out.resize(at + n);
        if (!read(out.data() + at, n)) {
            return false;
        }
        at += n;
    }
    return true;
}

// Exceptions are held back where the engine frees: a destructor ends the process by them.
template <typename F> void let_go(F && body) noexcept {
    try {
        body();
    } catch (...) {
    }
}

// Whether waiting for a lost server is no error on this thread: contexts wait when they are freed. Returns what was set.
bool set_freeing(bool is_freeing);

// The socket of a connection, for those who wait for its answers.
class connection {
public:
    void begin(int fd);
    void end();
    // Its thread, which waits in the socket, fails at once.
    void give_up();
    bool is_given_up() const { return was_given_up.load(std::memory_order_relaxed); }

private:
    std::mutex mutex;
    int        fd = -1;
    std::atomic<bool> was_given_up{ false };
};

// To a message that was sent; it outlives the connection.
class answer {
public:
    answer() = default;
    answer(std::future<void> result, std::shared_ptr<connection> from);
    // Throws what the connection failed with, and gives it up if the program wants to stop.
    void wait();

private:
    std::shared_future<void>    result;
    std::shared_ptr<connection> from;
};

// Part of each connection.
class server_link {
public:
    server_link();
    ~server_link();
    // The server has answered the first message.
    void begin(const std::string & endpoint, int fd);
    // On the thread of the connection, before anything else: signals are for other threads.
    static void begin_thread();
    // Of a message that was sent, and answered if it wanted an answer. False from the first failure on.
    bool note(bool is_ok);
    // Whether nothing more can be sent: it has failed, or it is of the process that this one was forked from.
    bool is_lost() const;
    // Of a message: hands on that it is done, or why it is not.
    void complete(std::promise<void> & completion) const;
    void   wait_for(std::future<void> result) const;
    answer answer_of(std::promise<void> & completion) const;
    // Throws lost_server for an answer that no server gives.
    void check(bool is_ok, const char * what) const;

private:
    std::string       endpoint;
    std::exception_ptr error;
    std::atomic<bool> is_failed{ false };
    int32_t           generation;
    std::shared_ptr<connection> socket;
};

// The graphs that a server keeps for one device, by number. Both sides bound their table alike and empty it when it is
// full; and a server forgets all graphs, but not their numbers, when a buffer is freed.
class kept_graphs {
public:
    explicit kept_graphs(size_t n_max = 1024) : n_max(n_max) {}
    // Whether it has this one; if not, it is about to be sent.
    bool has(uint64_t number);
    void forget() { live.clear(); }

private:
    size_t n_max;
    std::unordered_set<uint64_t> numbers, live;
};

} // namespace llama_spec
