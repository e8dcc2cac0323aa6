// NumPy reads logits and layer rows without a copy. The engine frees the buffer behind them when a later batch needs a
// larger one; while views point into it, it is kept here.

#include "hooks/output_buffers.h"

#include "hooks/llama-spec-hooks.h"

#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace {

struct retired_outputs {
    int64_t n_views = 0;
    std::vector<ggml_backend_buffer_ptr> buffers;
};

struct table {
    std::mutex mutex;
    std::map<const llama_context *, retired_outputs> outputs;
};

// Never destroyed: a context may be freed while the interpreter exits, after static destructors ran.
table * g_table = new table;

} // namespace

void llama_spec_retire_output(llama_context * ctx, ggml_backend_buffer_ptr && buffer) {
    std::lock_guard<std::mutex> lock(g_table->mutex);
    auto it = g_table->outputs.find(ctx);
    if (it != g_table->outputs.end() && it->second.n_views > 0) {
        it->second.buffers.push_back(std::move(buffer));
    }
}

int64_t llama_spec_count_views(const llama_context * ctx, int32_t n) {
    // Destroyed after the lock is released.
    std::vector<ggml_backend_buffer_ptr> unused;
    std::lock_guard<std::mutex> lock(g_table->mutex);
    auto & found = g_table->outputs[ctx];
    const int64_t n_views = found.n_views += n;
    if (n_views <= 0) {
        unused = std::move(found.buffers);
        g_table->outputs.erase(ctx);
    }
    return n_views;
}

void llama_spec_forget_views(const llama_context * ctx) {
    std::lock_guard<std::mutex> lock(g_table->mutex);
    g_table->outputs.erase(ctx);
}

void llama_spec_forget_outputs() {
    g_table = new table;
}
