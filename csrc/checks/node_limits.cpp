// Checks, when the graph is built, the node parameters that the CPU kernels assert on. Kernels run on worker threads,
// where an assertion ends the process; here it becomes an exception with the reason. The functions that build nodes
// assert shapes on the calling thread. This check covers what a file's metadata decides.

#include "checks/node_limits.h"

#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"

#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>

namespace {

[[noreturn]] void refuse(const ggml_tensor * node, const std::string & why) {
    throw std::runtime_error("the model's file is damaged: " + why + " (in " + ggml_op_name(node->op) + " '" +
            ggml_get_name(node) + "')");
}

void check_epsilon(const ggml_tensor * node, size_t index) {
    float eps = 0.0f;
    std::memcpy(&eps, node->op_params + index, sizeof(eps));
    if (!std::isfinite(eps) || eps < 0.0f) {
        refuse(node, "a norm's epsilon is " + std::to_string(eps));
    }
}

// A GPU's kernels accept other types, and report unsupported ones themselves.
bool is_on_cpu(const ggml_tensor * node) {
    for (int i = 0; i < GGML_MAX_SRC && node->src[i] != nullptr; ++i) {
        if (node->src[i]->buffer != nullptr && !ggml_backend_buffer_is_host(node->src[i]->buffer)) {
            return false;
        }
    }
    return true;
}

void refuse_types(const ggml_tensor * node) {
    if (!is_on_cpu(node)) {
        return;
    }
    std::string types;
    for (int i = 0; i < GGML_MAX_SRC && node->src[i] != nullptr; ++i) {
        types += std::string(i > 0 ? ", " : "") + node->src[i]->name + " is " + ggml_type_name(node->src[i]->type);
    }
    refuse(node, "the engine cannot compute with these types: " + types);
}

bool is_float(ggml_type type) {
    return type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16;
}

void check_binary(const ggml_tensor * node) {
    const ggml_type a = node->src[0]->type, b = node->src[1]->type;
    const bool is_quantized_sum = node->op == GGML_OP_ADD && ggml_is_quantized(a) && b == GGML_TYPE_F32;
    if (!is_quantized_sum && !(is_float(a) && (b == a || b == GGML_TYPE_F32) && (node->type == a || node->type == b))) {
        refuse_types(node);
    }
}

void check_product(const ggml_tensor * node) {
    if (ggml_get_type_traits_cpu(node->src[0]->type)->vec_dot == nullptr) {
        refuse_types(node);
    }
}

void check_get_rows(const ggml_tensor * node) {
    const ggml_type type = node->src[0]->type;
    const bool can_dequantize = ggml_is_quantized(type) && ggml_get_type_traits(type)->to_float != nullptr;
    if (!is_float(type) && type != GGML_TYPE_I32 && !can_dequantize) {
        refuse_types(node);
    }
}

// Checks kernels that accept only F32, except for lists of ids.
void check_f32(const ggml_tensor * node) {
    for (int i = 0; i < GGML_MAX_SRC && node->src[i] != nullptr; ++i) {
        if (node->src[i]->type != GGML_TYPE_F32 && node->src[i]->type != GGML_TYPE_I32) {
            refuse_types(node);
        }
    }
}

void check_rope(const ggml_tensor * node) {
    const int64_t width  = node->ne[0];
    const int32_t n_dims = node->op_params[1], mode = node->op_params[2], offset = node->op_params[15];
    if (n_dims < 2 || n_dims % 2 != 0 || offset < 0 || offset % 2 != 0 || (int64_t) offset + n_dims > width) {
        refuse(node, "rope.dimension_count is " + std::to_string(n_dims) + ", which does not fit rows of " +
                std::to_string(width));
    }
    if (node->src[2] != nullptr && node->src[2]->ne[0] < n_dims / 2) {
        refuse(node, "there are " + std::to_string(node->src[2]->ne[0]) + " rope factors for rope.dimension_count " +
                std::to_string(n_dims));
    }
    if ((mode & GGML_ROPE_TYPE_MROPE) == 0) {
        return;
    }
    int64_t sum = 0;
    bool    ok  = node->op_params[11] > 0 || node->op_params[12] > 0 || node->op_params[13] > 0;
    for (int i = 11; i < 15; ++i) {
        ok = ok && node->op_params[i] >= 0;
        sum += node->op_params[i];
    }
    if (!ok || sum > width) {
        refuse(node, "rope.dimension_sections do not fit rows of " + std::to_string(width));
    }
}

void check_scan(const ggml_tensor * node) {
    const int64_t n_heads = node->src[1]->ne[1], n_groups = node->src[4]->ne[1];
    if (n_groups < 1 || n_heads % n_groups != 0) {
        refuse(node, "ssm.group_count " + std::to_string(n_groups) + " does not divide " + std::to_string(n_heads) + " heads");
    }
}

// Linear attention divides by the ratio of value heads to key heads.
void check_delta(const ggml_tensor * node) {
    for (int dim : { 1, 3 }) {
        const int64_t q = node->src[0]->ne[dim], k = node->src[1]->ne[dim], v = node->src[2]->ne[dim];
        if (q < 1 || k < 1 || v % q != 0 || v % k != 0) {
            refuse(node, "ssm.group_count " + std::to_string(k) + " does not divide " + std::to_string(v) + " heads");
        }
    }
}

} // namespace

void llama_spec_check_nodes(ggml_cgraph * graph) {
    const int n_nodes = graph != nullptr ? ggml_graph_n_nodes(graph) : 0;
    for (int i = 0; i < n_nodes; ++i) {
        const ggml_tensor * node = ggml_graph_node(graph, i);
        switch (node->op) {
            case GGML_OP_NORM:
            case GGML_OP_RMS_NORM:
            case GGML_OP_L2_NORM:         check_epsilon(node, 0); break;
            case GGML_OP_GROUP_NORM:      check_epsilon(node, 1); break;
            case GGML_OP_ROPE:            check_rope(node);       break;
            case GGML_OP_ADD:
            case GGML_OP_SUB:
            case GGML_OP_MUL:
            case GGML_OP_DIV:             check_binary(node);     break;
            case GGML_OP_MUL_MAT:
            case GGML_OP_MUL_MAT_ID:      check_product(node);    break;
            case GGML_OP_GET_ROWS:        check_get_rows(node);   break;
            case GGML_OP_ADD_ID:
            case GGML_OP_SSM_CONV:        check_f32(node);        break;
            case GGML_OP_SSM_SCAN:        check_f32(node); check_scan(node); break;
            case GGML_OP_GATED_DELTA_NET: check_delta(node);      break;
            default: break;
        }
    }
}
