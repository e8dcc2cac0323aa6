#include "hooks/media_backend.h"

#include "checks/node_limits.h"

#include "ggml-backend.h"
#include "ggml-cpu.h"

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <vector>

namespace {

thread_local bool (*t_is_cancelled)(void *) = nullptr;
thread_local void * t_user = nullptr;

} // namespace

void llama_spec_on_media_backend(ggml_backend * backend) {
    ggml_backend_cpu_set_abort_callback(backend, t_is_cancelled, t_user);
}

void llama_spec_before_media(ggml_cgraph * graph) {
    llama_spec_check_nodes(graph);
    std::vector<int32_t> ids;
    for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
        const ggml_tensor * node = ggml_graph_node(graph, i);
        const ggml_tensor * rows = node->src[1];
        if (node->op != GGML_OP_GET_ROWS || (rows->view_src != nullptr ? rows->view_src : rows)->op != GGML_OP_NONE ||
                rows->type != GGML_TYPE_I32 || !ggml_is_contiguous(rows)) {
            continue;
        }
        ids.resize((size_t) ggml_nelements(rows));
        ggml_backend_tensor_get(rows, ids.data(), 0, ids.size() * sizeof(int32_t));
        const int64_t n = node->src[0]->ne[1];
        if (std::any_of(ids.begin(), ids.end(), [n](int32_t id) { return id < 0 || id >= n; })) {
            throw std::runtime_error("it reads places that the file has no rows for");
        }
    }
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
