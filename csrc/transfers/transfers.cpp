#include "transfers/transfers.h"

#include "ggml.h"

using llama_spec::transfers;

namespace {

thread_local transfers * own = nullptr, * whole = nullptr;

bool is_host(ggml_backend_dev_t device) {
    // A buffer type without a device is one of the CPU's own.
    return device == nullptr || ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU;
}

// Pinned memory also counts as the host's. So do weights that the CPU has rearranged, which the engine does not call
// "host".
bool is_host(const ggml_tensor * tensor) {
    ggml_backend_buffer_t buffer = tensor->view_src != nullptr ? tensor->view_src->buffer : tensor->buffer;
    return buffer == nullptr || ggml_backend_buffer_is_host(buffer) ||
        is_host(ggml_backend_buft_get_device(ggml_backend_buffer_get_type(buffer)));
}

// Only one thread writes, so the addition need not be atomic.
void add(std::atomic<uint64_t> transfers::* field, uint64_t n) {
    transfers * const both[] = { own, whole };
    for (transfers * one : both) {
        (one->*field).store((one->*field).load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
    }
}

} // namespace

namespace llama_spec {

count_transfers::count_transfers(transfers & own_now, transfers & whole_now) : own_before(own), whole_before(whole) {
    own   = &own_now;
    whole = &whole_now;
}

count_transfers::~count_transfers() {
    own   = own_before;
    whole = whole_before;
}

} // namespace llama_spec

void llama_spec_on_set(const ggml_tensor * tensor, size_t n_bytes) {
    if (own != nullptr && !is_host(tensor)) {
        add(&transfers::bytes_to_device, n_bytes);
        add(&transfers::n_to_device, 1);
    }
}

void llama_spec_on_get(const ggml_tensor * tensor, size_t n_bytes) {
    if (own != nullptr && !is_host(tensor)) {
        add(&transfers::bytes_to_host, n_bytes);
        add(&transfers::n_to_host, 1);
    }
}

void llama_spec_on_copy(const ggml_tensor * src, const ggml_tensor * dst) {
    if (own == nullptr) {
        return;
    }
    const bool from_host = is_host(src), to_host = is_host(dst);
    if (from_host) {
        llama_spec_on_set(dst, ggml_nbytes(dst));
    } else if (to_host) {
        llama_spec_on_get(src, ggml_nbytes(src));
    } else {
        add(&transfers::bytes_between, ggml_nbytes(src));
        add(&transfers::n_between, 1);
    }
}

void llama_spec_on_synchronize(ggml_backend_dev_t device) {
    if (own != nullptr && !is_host(device)) {
        add(&transfers::n_synchronisations, 1);
    }
}

void llama_spec_on_graph(ggml_backend_dev_t device) {
    if (own != nullptr && !is_host(device)) {
        add(&transfers::n_graphs, 1);
    }
}
