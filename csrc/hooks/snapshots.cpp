// Snapshots of recurrent states: which architectures write them, where a sequence's state lies, and what a graph
// stores. Plane d of a cell holds the state d tokens before the end of its sequence's last batch.
#include "hooks/snapshots.h"

#include "base/model_facts.h"
#include "hooks/llama-spec-hooks.h"

#include "llama-arch.h"
#include "llama-graph.h"
#include "llama-memory-hybrid-iswa.h"
#include "llama-memory-hybrid.h"
#include "llama-memory-recurrent.h"
#include "llama-model.h"

#include <algorithm>

namespace llama_spec {

state_sizes state_sizes_of(const llama_model & model) {
    const llama_hparams & h = model.hparams;
    state_sizes sizes = {};
    if (h.vocab_only || !(llm_arch_is_recurrent(model.arch) || llm_arch_is_hybrid(model.arch)) || model.arch == LLM_ARCH_DEEPSEEK4) {
        return sizes;
    }
    // A snapshot holds a state for each layer; with scans in place, an older state and a log of tokens.
    const pyllama_spec_scan_shape scan = llama_spec_scan_shape(model, 1);
    const bool     is_logged = scan.n_heads > 0;
    const uint64_t n_log     = is_logged ? (uint64_t) (scan.n_heads * pyllama_spec_token_log(&scan)) : 0;
    const uint64_t n_older   = is_logged ? (uint64_t) pyllama_spec_cell_log(&scan) - n_log + h.n_embd_s() : 0;
    const bool is_nemotron = model.arch == LLM_ARCH_NEMOTRON_H || model.arch == LLM_ARCH_NEMOTRON_H_MOE;
    for (uint32_t il = 0; il < h.n_layer(); ++il) {
        // The same filters as in llama_model::create_memory.
        const bool has_state = llm_arch_is_recurrent(model.arch) || model.arch == LLM_ARCH_FALCON_H1 ||
            (h.is_recr(il) && (!is_nemotron || h.n_ff(il) == 0));
        if (has_state) {
            const uint64_t windows = h.n_embd_r() + (h.ple_conv_state() > 0 && h.is_ple(il) ? h.ple_conv_state() : 0);
            sizes.state          += sizeof(float) * (windows + h.n_embd_s());
            sizes.snapshot_base  += sizeof(float) * n_older;
            sizes.snapshot_token += sizeof(float) * (windows + (is_logged ? n_log : h.n_embd_s()));
        }
    }
    return sizes;
}

llama_memory_recurrent * recurrent_part(llama_memory_i * memory) {
    if (auto * all = dynamic_cast<llama_memory_recurrent *>(memory)) {
        return all;
    }
    if (auto * hybrid = dynamic_cast<llama_memory_hybrid *>(memory)) {
        return hybrid->get_mem_recr();
    }
    if (auto * hybrid = dynamic_cast<llama_memory_hybrid_iswa *>(memory)) {
        return hybrid->get_mem_recr();
    }
    return nullptr;
}

// The engine refuses a second rollback before a decode, since the first one only selects a plane. But the planes still
// exist, so the depths add up.
bool roll_back(llama_memory_i * memory, llama_memory_recurrent * states, int32_t seq, int32_t p0) {
    const uint32_t before = states != nullptr ? states->rs_idx[(size_t) seq] : 0;
    if (before > 0) {
        states->rs_idx[(size_t) seq] = 0;
    }
    const bool done = memory->seq_rm(seq, p0, -1);
    if (before > 0) {
        states->rs_idx[(size_t) seq] += before;
    }
    return done;
}

// A copy shares its source's cell, but the engine does not copy which plane is selected.
void copy_depth(llama_memory_recurrent * states, int32_t from, int32_t to) {
    states->rs_idx[(size_t) to] = states->rs_idx[(size_t) from];
}

void give_own_cell(llama_memory_recurrent & memory, int32_t seq) {
    auto & cells = memory.cells;
    int32_t & tail = cells[(size_t) seq].tail;
    const auto own = std::find_if(cells.begin(), cells.end(), [](const auto & cell) { return cell.is_empty(); });
    const auto has_state = [](const ggml_tensor * t) { return t != nullptr; };
    const bool has_states = std::any_of(memory.r_l.begin(), memory.r_l.end(), has_state) ||
        std::any_of(memory.s_l.begin(), memory.s_l.end(), has_state);
    if (has_states || tail < 0 || cells[(size_t) tail].seq_id.size() < 2 || own == cells.end()) {
        return;
    }
    auto & shared = cells[(size_t) tail];
    own->pos = shared.pos;
    own->src = shared.src;
    own->seq_id.insert(seq);
    shared.seq_id.erase(seq);
    tail = (int32_t) (own - cells.begin());
    memory.used += 1;
}

void earlier_state::shift(int32_t direction) {
    if (back == 0) {
        return;
    }
    states->rs_idx[(size_t) seq] += (uint32_t) (direction * back);
    states->cells[(size_t) states->cells[(size_t) seq].tail].pos -= direction * back;
}

} // namespace llama_spec

bool llama_spec_has_snapshots(const llama_model & model) {
    switch (model.arch) {
        // Their graphs write snapshots in the unpatched engine.
        case LLM_ARCH_QWEN3NEXT:
        case LLM_ARCH_MAMBA2:
        case LLM_ARCH_FALCON_H1:
        case LLM_ARCH_GRANITE_HYBRID:
        // Their graphs need the call sites of vendor/patches/0008-snapshots-of-more-graphs.patch.
        case LLM_ARCH_KIMI_LINEAR:
        case LLM_ARCH_PLAMO2:
            return true;
        // The scan with a decay per element writes them only on the CPU.
        case LLM_ARCH_MAMBA:
        case LLM_ARCH_JAMBA:
            return llama_spec_n_device_layers(&model) == 0;
        default:
            return llm_arch_supports_rs_rollback(model.arch);
    }
}

// A new sequence gets the cell with its own number. So states of consecutive sequences are adjacent, and no state is
// moved, without its snapshots, to make room for a batch.
uint32_t llama_spec_cell_for(const llama_memory_recurrent & memory, int32_t seq, uint32_t next) {
    if (memory.n_rs_seq == 0) {
        return next;
    }
    const auto & cells = memory.cells;
    // A cell assigned to another new sequence of this batch still looks empty.
    const auto is_free = [&](uint32_t i) {
        return cells[i].is_empty() && std::none_of(cells.begin(), cells.end(), [&](const auto & c) { return c.tail == (int32_t) i; });
    };
    if (is_free((uint32_t) seq)) {
        return (uint32_t) seq;
    }
    for (uint32_t i = 0; i < memory.size; ++i) {
        if (is_free(i)) {
            return i;
        }
    }
    return next;
}

void llama_spec_on_move(llama_memory_recurrent & memory, int32_t dst, int32_t src) {
    for (const int32_t cell : { dst, src }) {
        for (const llama_seq_id seq : memory.cells[(size_t) cell].seq_id) {
            memory.is_moved[(size_t) seq] = true;
        }
    }
}

int64_t llama_spec_n_planes(const llm_graph_context & graph) {
    return (int64_t) graph.cparams.n_rs_seq + 1;
}

void llama_spec_store_windows(const llm_graph_context & graph, ggml_tensor * input, ggml_tensor * windows, int64_t n_window,
                              uint32_t head, int64_t at) {
    const int64_t n_seqs   = input->ne[2];
    const int64_t n_tokens = input->ne[0] - n_window;
    const int64_t n_planes = llama_spec_n_planes(graph);
    const size_t  n_cells  = (size_t) (windows->ne[1] / n_planes);
    for (int64_t d = 0; d < std::min(n_tokens, n_planes); ++d) {
        ggml_tensor * from = ggml_view_3d(graph.ctx0, input, n_window, input->ne[1], n_seqs, input->nb[1], input->nb[2],
                                          (size_t) (n_tokens - d) * input->nb[0]);
        ggml_tensor * to = ggml_view_3d(graph.ctx0, windows, n_window, input->ne[1], n_seqs, (size_t) n_window * windows->nb[0],
                                        windows->nb[1], ((size_t) d * n_cells + head) * windows->nb[1] + (size_t) at * windows->nb[0]);
        ggml_build_forward_expand(graph.gf, ggml_cpy(graph.ctx0, from, to));
    }
}

void llama_spec_store_states(const llm_graph_context & graph, ggml_tensor * scan, ggml_tensor * states, uint32_t head) {
    const ggml_tensor * x  = scan->src[1];      // {dim, n_head, n_tokens, n_seqs}, operand of ggml_ssm_scan
    const int64_t n_seqs   = x->ne[3];
    const int64_t n_planes = llama_spec_n_planes(graph);
    const int64_t n_kept   = std::min(x->ne[2], n_planes);
    const size_t  n_cells  = (size_t) (states->ne[1] / n_planes);
    const int64_t n_state  = states->ne[0];
    const size_t  row      = ggml_row_size(scan->type, n_state);
    ggml_tensor * from = ggml_view_3d(graph.ctx0, scan, n_state, n_seqs, n_kept, row, row * (size_t) n_seqs,
                                      (size_t) ggml_nelements(x) * ggml_element_size(scan));
    ggml_tensor * to = ggml_view_3d(graph.ctx0, states, n_state, n_seqs, n_kept, states->nb[1], n_cells * states->nb[1],
                                    (size_t) head * states->nb[1]);
    ggml_build_forward_expand(graph.gf, ggml_cpy(graph.ctx0, from, to));
}
