#include "base/model_facts.h"
#include "hooks/llama-spec-hooks.h"

#include "llama-graph.h"
#include "llama-io.h"
#include "llama-memory-recurrent.h"
#include "llama-model.h"

#include <vector>

namespace llama_spec {

namespace {

pyllama_spec_scan_shape shape_of(const llama_hparams & h, llm_arch arch, uint32_t n_log) {
    const int64_t d_state = h.ssm_d_state, n_heads = h.ssm_dt_rank, head_kda = h.n_embd_head_kda;
    switch (arch) {
        case LLM_ARCH_QWEN35:
        case LLM_ARCH_QWEN35MOE:
        case LLM_ARCH_QWEN3NEXT:
        case LLM_ARCH_QWEN4EXP:
            return { n_heads, d_state, d_state, 1, n_log };
        case LLM_ARCH_KIMI_LINEAR:
        case LLM_ARCH_KIMI_K3:
        case LLM_ARCH_BAILINGMOE3:
        case LLM_ARCH_GLM5_NEXT:
            return { (int64_t) h.n_head(), head_kda, head_kda, head_kda, n_log };
        case LLM_ARCH_MAMBA2:
        case LLM_ARCH_FALCON_H1:
        case LLM_ARCH_GRANITE_HYBRID:
        case LLM_ARCH_NEMOTRON_H:
        case LLM_ARCH_NEMOTRON_H_MOE:
        case LLM_ARCH_PLAMO2:
            return { n_heads, n_heads > 0 ? (int64_t) h.ssm_d_inner / n_heads : 0, d_state, 1, n_log };
        default:
            return {};
    }
}

// Operands that describe where a batch's states lie; `log` is NULL without rollbacks.
struct operands {
    ggml_tensor * log;
    ggml_tensor * ids;
    pyllama_spec_scan_place place;
};

bool is_ours(const llm_graph_input_rs & inp, const ggml_tensor * states, ggml_tensor ** log) {
    const llama_memory_recurrent & memory = *inp.mctx->get_memory();
    for (size_t il = 0; memory.scan.n_heads > 0 && il < memory.s_l.size(); ++il) {
        if (memory.s_l[il] == states) {
            *log = memory.log_l[il];
            return true;
        }
    }
    return false;
}

operands operands_of(const llm_graph_input_rs & inp, ggml_tensor * log) {
    const auto & m = *inp.mctx;
    return { log, inp.s_copy, { (int32_t) m.get_head(), (int32_t) m.get_size(), m.get_rs_z(), (int32_t) m.get_memory()->scan.n_log } };
}

} // namespace

} // namespace llama_spec

using namespace llama_spec;

// The engine's own scan runs with layers on a device, with a decay for each element (Mamba, Jamba), and with heads wider
// than the kernel's rows.
pyllama_spec_scan_shape llama_spec_scan_shape(const llama_model & model, uint32_t n_rs_seq) {
    const llama_hparams & h = model.hparams;
    const pyllama_spec_scan_shape shape = shape_of(h, model.arch, n_rs_seq);
    const bool fits = shape.n_heads > 0 && shape.n_cols > 0 && shape.n_cols <= PYLLAMA_SPEC_SCAN_COLS &&
        pyllama_spec_cell_state(&shape) == (int64_t) h.n_embd_s();
    return fits && llama_spec_n_device_layers(&model) == 0 ? shape : pyllama_spec_scan_shape{};
}

ggml_tensor * llama_spec_scan_log(const llama_memory_recurrent & memory, ggml_context * ctx, int il) {
    if (memory.scan.n_heads == 0 || memory.scan.n_log == 0) {
        return nullptr;
    }
    ggml_tensor * log = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, pyllama_spec_cell_log(&memory.scan), memory.size);
    ggml_format_name(log, "cache_s_log_l%d", il);
    return log;
}

ggml_tensor * llama_spec_state_place(const llm_graph_context & graph, const llm_graph_input_rs & inp, ggml_tensor * states,
                                     int64_t n_seqs) {
    ggml_tensor * log;
    return is_ours(inp, states, &log) ? ggml_view_2d(graph.ctx0, states, states->ne[0], n_seqs, states->nb[1], 0) : nullptr;
}

ggml_tensor * llama_spec_delta_scan(const llm_graph_context & graph, const llm_graph_input_rs & inp, ggml_tensor * states,
                                    ggml_tensor * q, ggml_tensor * k, ggml_tensor * v, ggml_tensor * g, ggml_tensor * beta) {
    ggml_tensor * log;
    if (!is_ours(inp, states, &log)) {
        return nullptr;
    }
    const operands o = operands_of(inp, log);
    ggml_tensor * scan = pyllama_spec_delta_scan(graph.ctx0, q, k, v, g, beta, states, o.log, o.ids, o.place);
    ggml_build_forward_expand(graph.gf, scan);
    const size_t row = ggml_row_size(scan->type, v->ne[0]), token = row * (size_t) v->ne[1];
    return ggml_view_4d(graph.ctx0, scan, v->ne[0], v->ne[1], v->ne[2], v->ne[3], row, token, token * (size_t) v->ne[2], 0);
}

ggml_tensor * llama_spec_ssm_scan(const llm_graph_context & graph, const llm_graph_input_rs & inp, ggml_tensor * states,
                                  ggml_tensor * x, ggml_tensor * dt, ggml_tensor * a, ggml_tensor * b, ggml_tensor * c) {
    ggml_tensor * log;
    if (!is_ours(inp, states, &log)) {
        return nullptr;
    }
    const operands o = operands_of(inp, log);
    ggml_tensor * scan = pyllama_spec_ssm_scan(graph.ctx0, x, dt, a, b, c, states, o.log, o.ids, o.place);
    ggml_build_forward_expand(graph.gf, scan);
    return scan;
}

bool llama_spec_write_earlier(const llama_memory_recurrent & memory, llama_io_write_i & io, int il, uint32_t begin, uint32_t end) {
    const ggml_tensor * states = memory.s_l[(size_t) il];
    const ggml_tensor * log    = memory.log_l[(size_t) il];
    if (log == nullptr || end <= memory.size) {
        return false;
    }
    const pyllama_spec_scan_shape & shape = memory.scan;
    std::vector<float> row((size_t) pyllama_spec_cell_state(&shape));
    for (uint32_t id = begin; id < end; ++id) {
        const size_t cell = id % memory.size;
        const float * newest = (const float *) states->data + cell * row.size();
        const float * source = newest;
        if (id >= memory.size) {
            const float * of_cell = (const float *) log->data + cell * (size_t) pyllama_spec_cell_log(&shape);
            pyllama_spec_scan_back(&shape, newest + memory.size * row.size(), of_cell, (int32_t) (id / memory.size), row.data());
            source = row.data();
        }
        io.write(source, row.size() * sizeof(float));
    }
    return true;
}
