#include "base/guard.h"

#include "ggml.h"
#include "llama.h"
#include "rpc/of_thread.h"

#ifdef PYLLAMA_SPEC_RPC
#include "rpc/link.h"
#endif

#include <chrono>
#include <cstdio>
#include <mutex>
#include <new>
#include <thread>

// ggml-threading.cpp: the engine holds it while it sets up its tables.
extern std::mutex ggml_critical_section_mutex;

namespace llama_spec {

namespace {

constexpr size_t MAX_LOG_BYTES = 2000;

OF_THREAD(std::string, t_last_error);
OF_THREAD(std::string, t_log);
thread_local bool        t_log_continues = false;

std::atomic<int> g_log_level{ GGML_LOG_LEVEL_ERROR + 1 };
thread_local int t_log_level = -1;  // this thread's own level; -1 follows the process's

void on_log(ggml_log_level level, const char * text, void *) {
    const bool continues = level == GGML_LOG_LEVEL_CONT;
    if (level >= GGML_LOG_LEVEL_WARN && !continues) {
        t_log_continues = level == GGML_LOG_LEVEL_ERROR;
    } else if (!continues) {
        t_log_continues = false;
    }
    if (t_log_continues && t_log.size() < MAX_LOG_BYTES) {
        t_log += text;
    }
    static thread_local bool printed = false;
    const int lowest = t_log_level >= 0 ? t_log_level : g_log_level.load(std::memory_order_relaxed);
    printed = continues ? printed : (int) level >= lowest;
    if (printed && level != GGML_LOG_LEVEL_NONE) {
        std::fputs(text, stderr);
    }
}

// ggml calls abort() if this returns, so it throws. Nothing can catch an exception on one of ggml's worker threads, so
// other code checks in advance what could assert there.
void on_abort(const char * message) {
    throw engine_abort(message);
}

std::atomic<bool>    g_exiting{ false };
std::atomic<int>     g_n_calls{ 0 };
std::atomic<int32_t> g_n_forks{ 0 };
std::atomic<bool (*)()> g_stop_question{ nullptr };

std::atomic<bool> g_is_ready{ false };
// Never destroyed, and replaced in a forked child: a thread of the parent may have held it.
std::mutex * g_init_mutex = new std::mutex;

} // namespace

bool is_exiting() {
    return g_exiting.load(std::memory_order_relaxed);
}

void begin_exit(int32_t timeout_ms) {
    g_exiting.store(true);
    for (int32_t waited = 0; waited < timeout_ms && g_n_calls.load() > 0; ++waited) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

void note_fork() {
    g_n_forks.fetch_add(1);
    g_n_calls.store(0);
    // Replaces locks that a thread of the parent may have held: no thread here would release them.
    g_init_mutex = new std::mutex;
    new (&ggml_critical_section_mutex) std::mutex;
}

int32_t n_forks() {
    return g_n_forks.load();
}

void set_stop_question(bool (*wants_to_stop)()) {
    g_stop_question.store(wants_to_stop);
}

bool wants_to_stop() {
    const auto ask = g_stop_question.load();
    return is_exiting() || (ask != nullptr && ask());
}

#ifdef PYLLAMA_SPEC_RPC

std::string lost_server_of_call() {
    return seen_lost_server();
}

bool is_stopped_call() {
    return has_given_up();
}

static void begin_call() {
    set_stop_asker(wants_to_stop);
    forget_lost_server();
}

freeing::freeing() : before(set_freeing(true)) {}

freeing::~freeing() {
    set_freeing(before);
}

#else

std::string lost_server_of_call() {
    return "";
}

bool is_stopped_call() {
    return false;
}

static void begin_call() {}

freeing::freeing() : before(false) {}

freeing::~freeing() {}

#endif

inside_call::inside_call() : generation(g_n_forks.load()) {
    g_n_calls.fetch_add(1);
}

inside_call::~inside_call() {
    if (generation == g_n_forks.load()) {
        g_n_calls.fetch_sub(1);
    }
}

home_process::home_process() : generation(g_n_forks.load(std::memory_order_relaxed)) {}

bool home_process::is_here() const {
    return generation == g_n_forks.load(std::memory_order_relaxed);
}

void home_process::check(const char * what) const {
    if (!is_here()) {
        fail(LLAMA_SPEC_FORKED, std::string(what) + " before the process forked; open the model in the child, or start the "
                "child with the spawn method");
    }
}

void init() {
    if (g_is_ready.load(std::memory_order_acquire)) {
        return;
    }
    std::lock_guard<std::mutex> lock(*g_init_mutex);
    if (!g_is_ready.load(std::memory_order_relaxed)) {
        ggml_set_abort_callback(on_abort);
        llama_log_set(on_log, nullptr);
        llama_backend_init();
        g_is_ready.store(true, std::memory_order_release);
    }
}

const std::string & last_error() {
    return t_last_error;
}

void set_last_error(const std::string & message) {
    t_last_error = message;
}

void set_log_level(int level) {
    g_log_level.store(level, std::memory_order_relaxed);
}

int set_thread_log_level(int level) {
    const int before = t_log_level;
    t_log_level = level < 0 ? -1 : level;
    return before;
}

void clear_log() {
    begin_call();
    t_log.clear();
    t_log_continues = false;
}

std::string take_log() {
    std::string out;
    std::swap(out, t_log);
    while (!out.empty() && (out.back() == '\n' || out.back() == ' ')) {
        out.pop_back();
    }
    for (char & c : out) {
        c = c == '\n' ? ';' : c;
    }
    return out;
}

std::string with_log(const std::string & what) {
    const std::string log = take_log();
    return log.empty() ? what : what + " (the engine says: " + log + ")";
}

int report_current_exception() {
    // Checks for a lost server first: the engine catches that exception and throws a less precise one.
    const std::string lost = lost_server_of_call();
    if (!lost.empty()) {
        clear_log();
        set_last_error(lost);
        return !is_stopped_call() ? LLAMA_SPEC_REMOTE : is_exiting() ? LLAMA_SPEC_EXITING : LLAMA_SPEC_CANCELLED;
    }
    try {
        throw;
    } catch (const failure & e) {
        // A cancellation that the caller requested needs no message from the engine.
        set_last_error(e.code == LLAMA_SPEC_CANCELLED ? e.what() : with_log(e.what()));
        return e.code;
    } catch (const engine_abort & e) {
        const bool is_incomplete = std::string(e.what()).find("a tensor is absent") != std::string::npos;
        set_last_error(with_log(std::string("the engine stopped at ") + e.what() +
                (is_incomplete ? ": the model's file is incomplete; download or convert it again" : "")));
        return LLAMA_SPEC_ENGINE;
    } catch (const no_room & e) {
        set_last_error(e.why);
        return LLAMA_SPEC_MEMORY;
    } catch (const std::bad_alloc &) {
        set_last_error(with_log("out of memory"));
        return LLAMA_SPEC_MEMORY;
    } catch (const std::exception & e) {
        set_last_error(with_log(e.what()));
        return LLAMA_SPEC_ENGINE;
    } catch (...) {
        set_last_error(with_log("an unknown exception in the engine"));
        return LLAMA_SPEC_ENGINE;
    }
}

} // namespace llama_spec
