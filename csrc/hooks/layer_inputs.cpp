// Layer inputs for every architecture, from the names that graphs give their tensors.

#include "hooks/layer_inputs.h"

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

// A row per token and nothing else: models with several residual streams name other shapes "l_out" too.
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

// The input of layer 0 has no name that models share. It is where the residual stream first branches
// (into the norm or the projections, and into the sum): follow the embeddings while one node alone
// reads them (a scale, an added position, a norm), and stop at the first that two or more read.
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
    return wants(graph.cparams, (size_t) graph.n_layer) ? graph.n_tokens : graph.n_outputs;
}

ggml_tensor * llama_spec_before_norm(const llm_graph_context & graph, ggml_tensor * cur, int il) {
    const size_t last = (size_t) graph.n_layer;
    if (il != -1 || !wants(graph.cparams, last) || graph.res->t_layer_inp[last] == nullptr) {
        return cur;
    }
    if (cur->ne[0] != graph.n_embd || cur->ne[1] != graph.n_tokens) {
        return cur;
    }
    auto inp = std::make_unique<llm_graph_input_out_ids>(graph.hparams, graph.cparams, graph.n_outputs);
    inp->out_ids = ggml_new_tensor_1d(graph.ctx0, GGML_TYPE_I32, graph.n_outputs);
    ggml_set_input(inp->out_ids);
    ggml_set_name(inp->out_ids, "spec_out_ids");

    ggml_tensor * rows = ggml_get_rows(graph.ctx0, cur, inp->out_ids);
    graph.res->add_input(std::move(inp));
    return rows;
}

void llama_spec_check_graph(const llm_graph_result & res, const llm_graph_params & params) {
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
        llama_set_embeddings_layer_inp(ctx, (uint32_t) layers[i], true);
    }
    // Reserving builds the worst-case graph, so that what is missing is found now and not at the first decode.
    ctx->sched_reserve();
}
