// Linked into test-backend-ops in place of the call before each graph (--wrap): the same program with our kernels, and
// with PYLLAMA_SPEC_STOCK set without them.
#include "kernels/thread_pool.h"

#include <cstdlib>

extern "C" void __real_pyllama_spec_prepare_pool(pyllama_spec_pool * pool, ggml_cgraph * graph, int n_threads);

extern "C" void __wrap_pyllama_spec_prepare_pool(pyllama_spec_pool * pool, ggml_cgraph * graph, int n_threads) {
    static const bool is_stock = std::getenv("PYLLAMA_SPEC_STOCK") != nullptr;
    pyllama_spec_set_stock_kernels(is_stock);
    __real_pyllama_spec_prepare_pool(pool, graph, n_threads);
}
