#include "abi/rpc.h"

#include "ggml-cpp.h"
#include "ggml-cpu.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <unordered_map>

#ifdef PYLLAMA_SPEC_RPC
#include "ggml-rpc.h"
#include "rpc/link.h"
#include "transport.h"

// The engine's function that serves one client until it disconnects. Patch 0016 exports it.
void rpc_serve_client(const std::vector<ggml_backend_t> & backends, const char * cache_dir, socket_ptr sock);
#endif

using namespace llama_spec;

namespace llama_spec {

#ifdef PYLLAMA_SPEC_RPC

namespace {

std::mutex g_mutex;
// Names of the servers' devices; the engine numbers them across all servers.
std::unordered_map<ggml_backend_dev_t, std::string> g_names;

} // namespace

std::vector<ggml_backend_dev_t> server_devices(const char * endpoint, ggml_backend_ptr & holder) {
    // The engine would query the devices on a separate connection, and only once.
    ggml_backend_reg_t reg = ggml_backend_rpc_add_server(endpoint);
    require(reg != nullptr, "the server has no devices");
    holder.reset(ggml_backend_rpc_init(endpoint, 0));
    std::vector<ggml_backend_dev_t> out;
    std::lock_guard<std::mutex> lock(g_mutex);
    for (size_t i = 0; i < ggml_backend_reg_dev_count(reg); ++i) {
        out.push_back(ggml_backend_reg_dev_get(reg, i));
        g_names[out.back()] = "RPC" + std::to_string(i) + "[" + endpoint + "]";
    }
    return out;
}

const char * device_name(ggml_backend_dev_t dev) {
    std::lock_guard<std::mutex> lock(g_mutex);
    const auto found = g_names.find(dev);
    return found != g_names.end() ? found->second.c_str() : ggml_backend_dev_name(dev);
}

#else

std::vector<ggml_backend_dev_t> server_devices(const char *, ggml_backend_ptr &) {
    fail(LLAMA_SPEC_UNSUPPORTED, "this build has no RPC: build it with GGML_RPC=ON");
}

const char * device_name(ggml_backend_dev_t dev) {
    return ggml_backend_dev_name(dev);
}

#endif

} // namespace llama_spec

bool llama_spec_has_rpc(void) {
#ifdef PYLLAMA_SPEC_RPC
    return true;
#else
    return false;
#endif
}

void llama_spec_set_server_timeout(int32_t seconds) {
#ifdef PYLLAMA_SPEC_RPC
    set_server_timeout(seconds);
#else
    (void) seconds;
#endif
}

int llama_spec_server_device(const char * endpoint, int32_t i, const char ** name, uint64_t * free_bytes,
                             uint64_t * total_bytes) {
    return guarded([&] {
        ggml_backend_ptr holder;
        const auto found = server_devices(endpoint, holder);
        *name = nullptr;
        if ((size_t) i < found.size()) {
            size_t n_free = 0, n_total = 0;
            ggml_backend_dev_memory(found[(size_t) i], &n_free, &n_total);
            *name        = device_name(found[(size_t) i]);
            *free_bytes  = n_free;
            *total_bytes = n_total;
        }
    });
}

#ifdef PYLLAMA_SPEC_RPC

namespace {

struct pool_deleter {
    void operator()(ggml_threadpool * pool) { ggml_threadpool_free(pool); }
};

bool is_wanted(ggml_backend_dev_t dev, const char * const * names, int32_t n_names) {
    const auto is_named = [&](const char * name) { return std::strcmp(ggml_backend_dev_name(dev), name) == 0; };
    return std::any_of(names, names + n_names, is_named);
}

} // namespace

int llama_spec_serve(int32_t fd, const char * const * names, int32_t n_names, int32_t n_threads) {
    // Closes the descriptor in every case.
    const socket_ptr client = socket_t::adopt(fd);
    return guarded([&] {
        // Each client has its own pools: clients compute in parallel, and each pool's threads wait for the client's
        // next graph.
        std::vector<std::unique_ptr<ggml_threadpool, pool_deleter>> pools;
        std::vector<ggml_backend_ptr> held;
        std::vector<ggml_backend_t> backends;
        for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
            ggml_backend_dev_t dev = ggml_backend_dev_get(i);
            if (!is_wanted(dev, names, n_names)) {
                continue;
            }
            held.emplace_back(ggml_backend_dev_init(dev, nullptr));
            if (!held.back()) {
                fail(LLAMA_SPEC_ENGINE, std::string("the device ") + ggml_backend_dev_name(dev) + " cannot be opened");
            }
            if (ggml_backend_is_cpu(held.back().get())) {
                ggml_threadpool_params params = ggml_threadpool_params_default(n_threads);
                pools.emplace_back(ggml_threadpool_new(&params));
                ggml_backend_cpu_set_n_threads(held.back().get(), n_threads);
                ggml_backend_cpu_set_threadpool(held.back().get(), pools.back().get());
            }
            backends.push_back(held.back().get());
        }
        require(!backends.empty(), "devices names none that this build has");
        rpc_serve_client(backends, nullptr, client);
    });
}

#else

int llama_spec_serve(int32_t, const char * const *, int32_t, int32_t) {
    return guarded([] { fail(LLAMA_SPEC_UNSUPPORTED, "this build has no RPC: build it with GGML_RPC=ON"); });
}

#endif
