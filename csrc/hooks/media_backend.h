// Call sites that vendor/patches/ adds to the engine's library for images and sounds, and what they pass on.
#pragma once

#include <thread>

struct ggml_backend;
struct ggml_cgraph;

// Called for each CPU backend that a projector makes: lets the caller cancel what it computes.
void llama_spec_on_media_backend(ggml_backend * backend);
// Called before a graph is computed, with its inputs set: throws where it reads a row that a tensor does not have. The operation
// asserts it on its own thread, where nobody can catch it.
void llama_spec_before_media(ggml_cgraph * graph);

namespace llama_spec {

// During its lifetime on a thread, backends made there ask is_cancelled(user) between two operations.
class cancelled_by {
public:
    cancelled_by(bool (*is_cancelled)(void *), void * user);
    ~cancelled_by();
    cancelled_by(const cancelled_by &) = delete;
    cancelled_by & operator=(const cancelled_by &) = delete;
};

// A thread that is waited for where an exception ends its scope, such as that of the next one that does not start.
struct worker : std::thread {
    using std::thread::operator=;
    ~worker() {
        if (joinable()) {
            join();
        }
    }
};

} // namespace llama_spec
