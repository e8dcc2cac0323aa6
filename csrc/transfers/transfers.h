// Counts copies between the host and devices while a context computes. vendor/patches/0020 adds the calls to the
// engine's ggml-backend.cpp; tensors in the host's memory are not counted.
#pragma once

#include "ggml-backend.h"

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace llama_spec {

// Written by one thread at a time, read by any.
struct transfers {
    std::atomic<uint64_t> bytes_to_device{ 0 }, bytes_to_host{ 0 }, bytes_between{ 0 };
    std::atomic<uint64_t> n_to_device{ 0 }, n_to_host{ 0 }, n_between{ 0 };
    std::atomic<uint64_t> n_synchronisations{ 0 };  // waits of the host for a device; blocking reads are not counted twice
    std::atomic<uint64_t> n_graphs{ 0 };            // sent to a device to compute
};

// Attributes this thread's copies to a context, and to the total that it shares with others.
class count_transfers {
public:
    count_transfers(transfers & own, transfers & whole);
    ~count_transfers();
    count_transfers(const count_transfers &) = delete;
    count_transfers & operator=(const count_transfers &) = delete;

private:
    transfers * own_before, * whole_before;
};

} // namespace llama_spec

// ---- call sites

void llama_spec_on_set(const ggml_tensor * tensor, size_t n_bytes);
void llama_spec_on_get(const ggml_tensor * tensor, size_t n_bytes);
// A copy that a device makes itself, even if one of the two tensors lies in the host's memory.
void llama_spec_on_copy(const ggml_tensor * src, const ggml_tensor * dst);
void llama_spec_on_synchronize(ggml_backend_dev_t device);
void llama_spec_on_graph(ggml_backend_dev_t device);
