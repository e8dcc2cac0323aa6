// Takes layer inputs in every architecture, by the names that graphs give their tensors.

#include "hooks/layer_inputs.h"

#include "base/abi_types.h"
#include "base/draft_output.h"
#include "checks/node_limits.h"
#include "hooks/llama-spec-hooks.h"

#include "llama-arch.h"
#include "llama-context.h"
#include "llama-cparams.h"
#include "llama-ext.h"
#include "llama-graph.h"
#include "llama-model.h"

#include <cstring>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

bool wants(const llama_cparams & cparams, size_t layer) {
    return layer < cparams.embeddings_layer_inp.size() && cparams.embeddings_layer_inp[layer];
}

// Accepts only one row per token: models with several residual streams also name other shapes "l_out".
bool is_row_per_token(const llm_graph_context & graph, const ggml_tensor * t) {
    return t->type == GGML_TYPE_F32 && t->ne[0] == graph.n_embd && t->ne[1] == graph.n_tokens &&
           t->ne[2] == 1 && t->ne[3] == 1 && ggml_is_contiguous(t);
}

std::string arch_of(llm_arch arch) {
    return std::string("architecture '") + llm_arch_name(arch) + "'";
}

void collect(const ggml_tensor * node, std::set<const ggml_tensor *> & seen) {
    std::vector<const ggml_tensor *> stack = { node };
    while (!stack.empty()) {
        const ggml_tensor * t = stack.back();
        stack.pop_back();
        if (t == nullptr || !seen.insert(t).second) {
            continue;
        }
        for (auto * src : t->src) {
            stack.push_back(src);
        }
        stack.push_back(t->view_src);
    }
}

const ggml_tensor * only_consumer(const ggml_tensor * t, const std::set<const ggml_tensor *> & nodes) {
    const ggml_tensor * found = nullptr;
    for (const ggml_tensor * node : nodes) {
        for (auto * src : node->src) {
            if (src == t && node != found) {
                if (found != nullptr) {
                    return nullptr;
                }
                found = node;
            }
        }
    }
    return found;
}

// The input of layer 0 has no common name. It is the tensor at which the residual stream first branches (into the norm
// or the projections, and into the sum). So the search follows the embeddings while only one node reads them (a scale,
// an added position, a norm), and stops at the first tensor with two or more readers.
ggml_tensor * first_layer_input(const llm_graph_context & graph, const ggml_tensor * first_output) {
    std::set<const ggml_tensor *> nodes;
    collect(first_output, nodes);

    const ggml_tensor * t = graph.res->t_inp_embd;
    while (t != nullptr && nodes.count(t) != 0) {
        const ggml_tensor * next = only_consumer(t, nodes);
        if (next == nullptr) {
            break;
        }
        t = next;
    }
    return t != nullptr && t != first_output && nodes.count(t) != 0 ? const_cast<ggml_tensor *>(t) : nullptr;
}

// Says whether rows without an output are dropped after the last layer, so that its output is complete. If the rows of
// an MTP head are needed as well, the engine's own graphs keep all rows until then.
bool moves_dropping(const llm_graph_context & graph) {
    const bool keeps_rows = graph.cparams.embeddings_nextn && !graph.cparams.embeddings_nextn_masked;
    return wants(graph.cparams, (size_t) graph.n_layer) && !keeps_rows;
}

// Selects the rows of t, [n, n_tokens], that have an output.
ggml_tensor * rows_with_output(ggml_context * ctx, llm_graph_result & res, const llama_hparams & hparams,
                               const llama_cparams & cparams, int32_t n_outputs, ggml_tensor * t) {
    auto inp = std::make_unique<llm_graph_input_out_ids>(hparams, cparams, n_outputs);
    inp->out_ids = ggml_new_tensor_1d(ctx, GGML_TYPE_I32, n_outputs);
    ggml_set_input(inp->out_ids);
    ggml_set_name(inp->out_ids, "spec_out_ids");
    ggml_tensor * rows = ggml_get_rows(ctx, t, inp->out_ids);
    res.add_input(std::move(inp));
    return rows;
}

// Checks the rows that an MTP head reads from the target, or passes on from step to step. The engine copies the
// beginning of the tensor: one row per token, or with masking one per output. But some graphs keep all rows, so those
// are reduced here.
void check_head_rows(llm_graph_result & res, const llm_graph_params & params) {
    const bool is_masked = params.cparams.embeddings_nextn_masked;
    // Other drafts choose what they pass on, and it is masked.
    if (!params.cparams.embeddings_nextn || (is_masked && params.gtype != LLM_GRAPH_TYPE_DECODER_MTP)) {
        return;
    }
    ggml_tensor * t = res.t_h_nextn;
    const int64_t n_tokens = params.ubatch.n_tokens, n_embd = params.hparams.n_embd_out();
    if (t == nullptr || t->type != GGML_TYPE_F32 || !ggml_is_contiguous(t) || ggml_nelements(t) % n_embd != 0) {
        throw std::runtime_error(arch_of(params.arch) + " does not expose the rows that an MTP head reads");
    }
    const int64_t n_rows = ggml_nelements(t) / n_embd;
    if (is_masked && n_rows == n_tokens && params.n_outputs > 0 && params.n_outputs < n_tokens) {
        ggml_tensor * all = ggml_reshape_2d(res.get_ctx(), t, n_embd, n_tokens);
        res.t_h_nextn = rows_with_output(res.get_ctx(), res, params.hparams, params.cparams, (int32_t) params.n_outputs, all);
        ggml_set_output(res.t_h_nextn);
        ggml_build_forward_expand(res.get_gf(), res.t_h_nextn);
    } else if (n_rows != n_tokens && !(is_masked && n_rows == params.n_outputs)) {
        throw std::runtime_error(arch_of(params.arch) + " does not keep the rows that an MTP head reads");
    }
}

// Reduces the output of a draft that chooses from a part of the vocabulary. EAGLE-3 and DFlash have done so themselves; the
// logits of some models pass a function first, and these choose from all.
void reduce_output(llm_graph_result & res, const llm_graph_params & params) {
    const llama_spec::draft_output * output = llama_spec::draft_output_in_use();
    if (output == nullptr || res.t_logits == nullptr) {
        return;
    }
    ggml_tensor * logits = output->build(res.get_ctx(), res.get_gf(), res.t_logits, res.t_logits->ne[0]);
    if (logits != nullptr) {
        res.t_logits = logits;
    } else if (params.gtype == LLM_GRAPH_TYPE_DECODER_MTP) {
        throw std::runtime_error(arch_of(params.arch) + " has no output matrix that its head could use in part");
    }
}

} // namespace

void llama_spec_on_tensor(const llm_graph_context & graph, ggml_tensor * cur, const char * name, int il) {
    if (il < 0 || il >= graph.n_layer || std::strcmp(name, "l_out") != 0) {
        return;
    }
    auto & taps = graph.res->t_layer_inp;

    if (il == 0 && wants(graph.cparams, 0) && taps[0] == nullptr) {
        ggml_tensor * t = first_layer_input(graph, cur);
        if (t != nullptr && is_row_per_token(graph, t)) {
            taps[0] = t;
        }
    }
    const size_t layer = (size_t) il + 1;
    if (!wants(graph.cparams, layer) || !is_row_per_token(graph, cur)) {
        return;
    }
    if (taps[layer] != nullptr && taps[layer] != cur) {
        throw std::runtime_error(arch_of(graph.arch) + " runs layer " + std::to_string(il) +
                " several times, so the input of layer " + std::to_string(layer) + " is ambiguous");
    }
    taps[layer] = cur;
}

int64_t llama_spec_n_rows_last_layer(const llm_graph_context & graph) {
    return moves_dropping(graph) ? graph.n_tokens : graph.n_outputs;
}

ggml_tensor * llama_spec_before_norm(const llm_graph_context & graph, ggml_tensor * cur, int il) {
    const size_t last = (size_t) graph.n_layer;
    if (il != -1 || !moves_dropping(graph) || graph.res->t_layer_inp[last] == nullptr) {
        return cur;
    }
    if (cur->ne[0] != graph.n_embd || cur->ne[1] != graph.n_tokens) {
        return cur;
    }
    return rows_with_output(graph.ctx0, *graph.res, graph.hparams, graph.cparams, (int32_t) graph.n_outputs, cur);
}

void llama_spec_check_graph(llm_graph_result & res, const llm_graph_params & params) {
    check_head_rows(res, params);
    reduce_output(res, params);
    llama_spec_check_nodes(res.get_gf());
    const auto & wanted = params.cparams.embeddings_layer_inp;
    for (size_t layer = 0; layer < wanted.size(); ++layer) {
        if (wanted[layer] && res.get_layer_inp((int) layer) == nullptr) {
            throw std::runtime_error(arch_of(params.arch) + " does not expose the input of layer " +
                    std::to_string(layer) + " in its graph");
        }
    }
    const size_t last = params.hparams.n_layer();
    if (wants(params.cparams, last) && res.t_logits != nullptr && res.t_logits->ne[1] != (int64_t) params.n_outputs) {
        throw std::runtime_error(arch_of(params.arch) + " does not drop rows where the output of its last layer "
                "(the input of layer " + std::to_string(last) + ") could be kept whole");
    }
}

void llama_spec_enable_layer_inputs(llama_context * ctx, const int32_t * layers, size_t n_layers) {
    for (size_t i = 0; i < n_layers; ++i) {
        if (layers[i] == LLAMA_SPEC_HEAD_ROWS) {
            llama_set_embeddings_nextn(ctx, true, /* masked */ false);
        } else {
            llama_set_embeddings_layer_inp(ctx, (uint32_t) layers[i], true);
        }
    }
    // Reserving builds the worst-case graph, so a missing input is found now and not at the first decode.
    ctx->sched_reserve();
}
