#include "hooks/media_backend.h"

#include "ggml-cpu.h"

namespace {

thread_local bool (*t_is_cancelled)(void *) = nullptr;
thread_local void * t_user = nullptr;

} // namespace

void llama_spec_on_media_backend(ggml_backend * backend) {
    ggml_backend_cpu_set_abort_callback(backend, t_is_cancelled, t_user);
}

namespace llama_spec {

cancelled_by::cancelled_by(bool (*is_cancelled)(void *), void * user) {
    t_is_cancelled = is_cancelled;
    t_user = user;
}

cancelled_by::~cancelled_by() {
    t_is_cancelled = nullptr;
    t_user = nullptr;
}

} // namespace llama_spec
