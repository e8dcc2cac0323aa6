// Handles failing servers for the engine's client. The engine would assert on a thread of its own, where nothing can
// catch it. Here the failure reaches the thread that waits for the answer, as an exception, and every later message to
// the server fails at once. Patch 0016 has the call sites.
#pragma once

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

namespace llama_spec {

// A server of layers that cannot be reached, disconnected, stays silent, or sends invalid answers.
struct lost_server : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// The error thrown on this thread since the last forget_lost_server(); empty if none. While it loads, the engine
// catches exceptions and reports failure without their type.
const std::string & seen_lost_server();
void forget_lost_server();

// Sets the timeout for an answer on connections opened from now on. Servers send nothing while they compute.
void set_server_timeout(int32_t seconds);

[[noreturn]] void lose_server(const std::string & endpoint, const std::string & why);

// Records for this thread that the other side closed a connection.
void note_closed();

// Says whether to repeat a failed call: if a signal interrupted it, or if its time slice ended and more remain. Otherwise
// the error is recorded for this thread.
bool goes_on();

// Prepares a socket before it connects, on the thread that will wait for it.
void before_connect(int fd);

// Sets the function that waiting threads of the program call regularly: true ends the wait, as at Ctrl-C.
void set_stop_asker(bool (*wants_to_stop)());
// Says whether this call gave up a connection for that reason.
bool has_given_up();

// With joint computation of two servers, a client could make a server listen on all addresses, or connect to any
// address.
constexpr bool REFUSES_PAIRS = true;

// Suppresses exceptions while the engine frees objects: thrown from a destructor, they would end the process.
template <typename F> void let_go(F && body) noexcept {
    try {
        body();
    } catch (...) {
    }
}

// Sets whether losing a server is ignored on this thread: contexts wait for servers when they are freed. Returns the
// previous value.
bool set_freeing(bool is_freeing);

// The socket of a connection, for the threads that wait for its answers.
class connection {
public:
    void begin(int fd);
    void end();
    // Makes the connection's thread, which waits in the socket, fail at once.
    void give_up();
    bool is_given_up() const { return was_given_up.load(std::memory_order_relaxed); }

private:
    std::mutex mutex;
    int        fd = -1;
    std::atomic<bool> was_given_up{ false };
};

// The answer to a sent message; it outlives the connection.
class answer {
public:
    answer() = default;
    answer(std::future<void> result, std::shared_ptr<connection> from);
    // Throws the connection's error; gives the connection up if the program wants to stop.
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
    // Called after the server has answered the first message.
    void begin(const std::string & endpoint, int fd);
    // Called first on the connection's thread: blocks signals, which other threads handle.
    static void begin_thread();
    // Records whether a message was sent, and answered if it expects an answer. Returns false from the first failure
    // on.
    bool note(bool is_ok);
    // Says whether nothing more can be sent: the connection has failed, or belongs to the process that this one was
    // forked from.
    bool is_lost() const;
    // Completes a message's promise, with the error if it failed.
    void complete(std::promise<void> & completion) const;
    void   wait_for(std::future<void> result) const;
    answer answer_of(std::promise<void> & completion) const;
    // Throws lost_server for an answer that no server would give.
    void check(bool is_ok, const char * what) const;

private:
    std::string       endpoint;
    std::exception_ptr error;
    std::atomic<bool> is_failed{ false };
    int32_t           generation;
    std::shared_ptr<connection> socket;
};

// The graphs that a server keeps for one device, by number. Both sides limit their table equally and empty it when it
// is full. When a buffer is freed, a server discards all graphs, but keeps their numbers.
class kept_graphs {
public:
    explicit kept_graphs(size_t n_max = 1024) : n_max(n_max) {}
    // Says whether the server has this graph; if not, the caller sends it next.
    bool has(uint64_t number);
    void forget() { live.clear(); }

private:
    size_t n_max;
    std::unordered_set<uint64_t> numbers, live;
};

} // namespace llama_spec
