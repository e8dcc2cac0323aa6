// What a failing server is to the engine's client: the engine asserts, on a thread of its own, where nothing can catch
// it. Here the failure travels to whoever waits for the answer, as an exception, and everything that is sent to the
// server after it fails at once. Patch 0016 has the call sites.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <future>
#include <stdexcept>
#include <string>
#include <unordered_set>

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

// Whether the call was only interrupted by a signal, and is to be made again.
bool was_interrupted();

// A socket that is about to connect, and one whose server has answered the first message.
void before_connect(int fd);
void after_hello(int fd);

// Exceptions are held back where the engine frees: a destructor ends the process by them.
template <typename F> void let_go(F && body) noexcept {
    try {
        body();
    } catch (...) {
    }
}

// Whether waiting for a lost server is no error on this thread: contexts wait when they are freed. Returns what was set.
bool set_freeing(bool is_freeing);

// Part of each connection.
class server_link {
public:
    server_link();
    void name(const std::string & endpoint);
    // On the thread of the connection, before anything else: signals are for other threads.
    static void begin_thread();
    // Of a message that was sent, and answered if it wanted an answer. False from the first failure on.
    bool note(bool is_ok);
    // Whether nothing more can be sent: it has failed, or it is of the process that this one was forked from.
    bool is_lost() const;
    // Of a message: hands on that it is done, or why it is not.
    void complete(std::promise<void> & completion) const;
    // Throws lost_server for an answer that no server gives.
    void check(bool is_ok, const char * what) const;

private:
    std::string       endpoint;
    std::exception_ptr error;
    std::atomic<bool> is_failed{ false };
    int32_t           generation;
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

// Throws what the message's connection failed with.
void wait_for(std::future<void> answer);
void wait_for(std::shared_future<void> & answer);

} // namespace llama_spec
