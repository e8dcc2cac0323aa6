// The engine's graphs divide by numbers from a file and use tensors that a file may lack. There are 150 architectures,
// each reads its own keys, and every pin adds more. check_gguf() refuses known faults by name. This file catches the
// rest: the engine is compiled with -fnon-call-exceptions, so that the handler of a synchronous signal may throw
// through its frames, as the runtimes of Ada and Java do. C frames need no cleanup and are skipped. Only two faults
// throw, both only on a thread inside one of our calls: an integer division by zero (x86 raises a signal, ARM returns
// 0), and an access below NULL_BYTES. A wild pointer or a stack overflow still ends the process.

#include "base/fault_net.h"

#if (defined(__unix__) || defined(__APPLE__)) && !defined(PYLLAMA_SPEC_NO_FAULT_NET)

#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstring>

namespace llama_spec {

namespace {

// The largest struct that the engine accesses through a pointer, a model, has some 30 KiB.
constexpr uintptr_t NULL_BYTES = 1 << 16;

thread_local bool t_has_net = false;

constexpr int KINDS[] = { SIGFPE, SIGSEGV, SIGBUS };
struct sigaction  g_before[3];
std::atomic<int>  g_n_passed{ 0 };

bool is_null_access(int signal, const siginfo_t * info) {
    const bool is_access = signal == SIGSEGV || signal == SIGBUS;
    return is_access && info->si_code > 0 && reinterpret_cast<uintptr_t>(info->si_addr) < NULL_BYTES;
}

// Calls the previous handler. If that one passes the signal back here, the default ends the process.
void pass_on(int signal, siginfo_t * info, void * context) {
    struct sigaction before = {};
    for (size_t i = 0; i < 3; ++i) {
        before = KINDS[i] == signal ? g_before[i] : before;
    }
    const bool is_default = (before.sa_flags & SA_SIGINFO) == 0 && (before.sa_handler == SIG_DFL || before.sa_handler == SIG_IGN);
    if (is_default || g_n_passed.fetch_add(1) > 0) {
        std::signal(signal, SIG_DFL);
        if (info->si_code <= 0) {
            std::raise(signal);     // another process sent the signal, so the fault does not repeat by itself
        }
        return;
    }
    if ((before.sa_flags & SA_SIGINFO) != 0) {
        before.sa_sigaction(signal, info, context);
    } else {
        before.sa_handler(signal);
    }
    g_n_passed.store(0);
}

void on_fault(int signal, siginfo_t * info, void * context) {
    if (t_has_net && signal == SIGFPE && info->si_code == FPE_INTDIV) {
        throw engine_fault("the engine divided by zero");
    }
    if (t_has_net && is_null_access(signal, info)) {
        throw engine_fault("the engine needs a tensor that the file does not have");
    }
    pass_on(signal, info, context);
}

} // namespace

fault_net::fault_net() : is_outermost(!t_has_net) {
    t_has_net = true;
}

fault_net::~fault_net() {
    if (is_outermost) {
        t_has_net = false;
    }
}

void stretch_fault_net() {
    for (size_t i = 0; i < 3; ++i) {
        struct sigaction there = {};
        if (sigaction(KINDS[i], nullptr, &there) != 0 || ((there.sa_flags & SA_SIGINFO) != 0 && there.sa_sigaction == on_fault)) {
            continue;
        }
        struct sigaction ours = {};
        ours.sa_sigaction = on_fault;
        // The handler exits by throwing: the signal must not stay blocked.
        ours.sa_flags = SA_SIGINFO | SA_NODEFER;
        sigemptyset(&ours.sa_mask);
        g_before[i] = there;
        sigaction(KINDS[i], &ours, nullptr);
    }
}

} // namespace llama_spec

#else

namespace llama_spec {

fault_net::fault_net() : is_outermost(false) {}
fault_net::~fault_net() {}
void stretch_fault_net() {}

} // namespace llama_spec

#endif
