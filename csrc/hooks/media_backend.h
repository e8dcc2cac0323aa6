// A call site that vendor/patches/ adds to the engine's library for images and sounds, and what it passes on.
#pragma once

struct ggml_backend;

// Called for each CPU backend that a projector makes: lets the caller cancel what it computes.
void llama_spec_on_media_backend(ggml_backend * backend);

namespace llama_spec {

// During its lifetime on a thread, backends made there ask is_cancelled(user) between two operations.
class cancelled_by {
public:
    cancelled_by(bool (*is_cancelled)(void *), void * user);
    ~cancelled_by();
    cancelled_by(const cancelled_by &) = delete;
    cancelled_by & operator=(const cancelled_by &) = delete;
};

} // namespace llama_spec
