// Process and machine: errors, log, exit, forks, devices.
#include "abi/llama-spec.h"
#include "base/guard.h"
#include "hooks/output_buffers.h"
#include "kernels/rows.h"
#include "kernels/thread_pool.h"

#include "ggml-backend.h"
#include "llama.h"

using namespace llama_spec;

const char * llama_spec_last_error(void) {
    return last_error().c_str();
}

void llama_spec_shutdown(int32_t timeout_ms) {
    begin_exit(timeout_ms);
}

void llama_spec_after_fork(void) {
    note_fork();
    llama_spec_forget_outputs();
}

int32_t llama_spec_fork_generation(void) {
    return n_forks();
}

const char * llama_spec_engine_version(void) {
    return llama_version();
}

const char * llama_spec_system_info(void) {
    guarded([] {});     // installs the log callback, so that the devices' first lines go to our log
    return llama_print_system_info();
}

const char * llama_spec_row_kernels(void) {
    static const std::string names = [] {
        const std::string floats = pyllama_spec_float_kernels(), blocks = pyllama_spec_block_kernels();
        return floats + (floats.empty() || blocks.empty() ? "" : ", ") + blocks;
    }();
    return names.c_str();
}

void llama_spec_set_stock_kernels(bool are_stock) {
    pyllama_spec_set_stock_kernels(are_stock);
}

void llama_spec_set_log_level(int level) {
    set_log_level(level);
}

int llama_spec_set_thread_log_level(int level) {
    return set_thread_log_level(level);
}

void llama_spec_on_wait(bool (*wants_to_stop)(void)) {
    set_stop_question(wants_to_stop);
}

int llama_spec_device(int32_t i, const char ** name, const char ** description, uint64_t * free_bytes,
                      uint64_t * total_bytes) {
    return guarded([&] {
        *name = nullptr;
        if ((size_t) i >= ggml_backend_dev_count()) {
            return;
        }
        ggml_backend_dev_t dev = ggml_backend_dev_get((size_t) i);
        size_t n_free = 0, n_total = 0;
        ggml_backend_dev_memory(dev, &n_free, &n_total);
        *name        = ggml_backend_dev_name(dev);
        *description = ggml_backend_dev_description(dev);
        *free_bytes  = n_free;
        *total_bytes = n_total;
    });
}

int llama_spec_backend(int32_t i, const char ** name, int32_t * n_devices) {
    return guarded([&] {
        const bool is_one = (size_t) i < ggml_backend_reg_count();
        ggml_backend_reg_t reg = is_one ? ggml_backend_reg_get((size_t) i) : nullptr;
        *name      = is_one ? ggml_backend_reg_name(reg) : nullptr;
        *n_devices = is_one ? (int32_t) ggml_backend_reg_dev_count(reg) : 0;
    });
}

bool llama_spec_supports_gpu(void) {
    // The engine says yes for any build with RPC, even without a server.
    return guarded_or(false, [] {
        bool ok = false;
        for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
            const auto type = ggml_backend_dev_type(ggml_backend_dev_get(i));
            ok = ok || type == GGML_BACKEND_DEVICE_TYPE_GPU || type == GGML_BACKEND_DEVICE_TYPE_IGPU;
        }
        return ok;
    });
}
