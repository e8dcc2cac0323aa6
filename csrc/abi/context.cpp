#include "abi/handles.h"
#include "abi/rpc.h"
#include "base/model_facts.h"
#include "checks/memory_room.h"
#include "hooks/layer_inputs.h"
#include "hooks/output_buffers.h"
#include "hooks/snapshots.h"

#include "llama-ext.h"

#include <algorithm>
#include <string>

using namespace llama_spec;

namespace llama_spec {

context_state::~context_state() {
    if (ctx == nullptr) {
        return;
    }
    llama_spec_forget_views(ctx);
    const freeing quiet;
    // A failure in mid-graph leaves an unknown state, and an assertion in one of the engine's destructors ends the
    // process. So a poisoned context is leaked.
    // The loss of a server is different: the rest of the engine is unchanged, so the context is freed.
    if (!poisoned || !lost.empty()) {
        llama_free(ctx);
    }
}

void poison(context_state & state) {
    state.poisoned = true;
    state.lost     = lost_server_of_call();
}

context_state & open_context(llama_spec_context * handle) {
    handle->state->home.check("this context was opened");
    return *handle->state;
}

context_call::context_call(llama_spec_context * handle)
    : state(open_context(handle)),
      lock(state.compute->busy, "the context (or one it shares threads with)"),
      mark(state.in_call, "the context") {
    if (is_exiting()) {
        fail(LLAMA_SPEC_EXITING, "the process is ending");
    }
    if (!state.lost.empty()) {
        fail(LLAMA_SPEC_REMOTE, state.lost);
    }
    if (state.poisoned) {
        fail(LLAMA_SPEC_POISONED, "an earlier failure left this context in an unknown state; close it and open another");
    }
}

} // namespace llama_spec

namespace {

bool is_cancelled(void * state) {
    return is_exiting() || static_cast<context_state *>(state)->cancelled.load(std::memory_order_relaxed);
}

llama_context_params engine_params(const llama_spec_context_params & in, context_state & state) {
    llama_context_params out = llama_context_default_params();
    out.n_ctx           = in.n_ctx;
    out.n_batch         = in.n_batch;
    out.n_ubatch        = in.n_ubatch;
    out.n_seq_max       = in.n_seq_max;
    out.n_rs_seq        = in.n_rs_seq;
    out.n_outputs_max   = in.n_outputs_max;
    out.n_threads       = in.n_threads;
    out.n_threads_batch = in.n_threads_batch;
    out.flash_attn_type = (llama_flash_attn_type) in.flash_attn;
    out.type_k          = (ggml_type) in.type_k;
    out.type_v          = (ggml_type) in.type_v;
    out.rope_scaling_type = (llama_rope_scaling_type) in.rope_scaling_type;
    out.pooling_type      = (enum llama_pooling_type) in.pooling_type;
    out.rope_freq_base    = in.rope_freq_base;
    out.rope_freq_scale   = in.rope_freq_scale;
    out.attention_type    = (enum llama_attention_type) in.attention_type;
    out.yarn_ext_factor   = in.yarn_ext_factor;
    out.yarn_attn_factor  = in.yarn_attn_factor;
    out.yarn_beta_fast    = in.yarn_beta_fast;
    out.yarn_beta_slow    = in.yarn_beta_slow;
    out.yarn_orig_ctx     = in.yarn_orig_ctx;
    out.offload_kqv     = in.offload_kqv;
    out.op_offload      = in.op_offload;
    out.swa_full        = in.swa_full;
    out.kv_unified      = in.kv_unified;
    out.embeddings      = in.embeddings;
    out.no_perf         = true;
    out.abort_callback      = is_cancelled;
    out.abort_callback_data = &state;
    out.ctx_other = state.target ? state.target->ctx : nullptr;
    const bool gives_head_rows = std::find(in.layers, in.layers + in.n_layers, LLAMA_SPEC_HEAD_ROWS) != in.layers + in.n_layers;
    if (in.is_head || gives_head_rows) {
        // A model that pools does not copy its rows out.
        out.pooling_type = LLAMA_POOLING_TYPE_NONE;
        out.embeddings   = false;
    }
    if (in.is_head) {
        out.ctx_type = LLAMA_CONTEXT_TYPE_MTP;
        out.n_rs_seq = 0;
    }
    return out;
}

void check_params(const llama_spec_context_params & p) {
    require(p.n_seq_max <= llama_max_parallel_sequences(), "`n_seq_max` is above the engine's limit");
    require(std::max(p.n_threads, p.n_threads_batch) <= GGML_MAX_N_THREADS, "n_threads or n_threads_batch is above the engine's limit");
    // The engine asserts that a batch can have an output for each sequence, and limits n_batch to n_ctx.
    const uint32_t n_outputs = std::min(p.n_outputs_max > 0 ? std::min(p.n_outputs_max, p.n_batch) : p.n_batch, p.n_ctx);
    if (p.n_seq_max > n_outputs) {
        fail(LLAMA_SPEC_ARGUMENT, "`n_seq_max=" + std::to_string(p.n_seq_max) + "` is more than the " + std::to_string(n_outputs) +
                " tokens with logits that `n_ctx`, `n_batch` and `n_outputs_max` allow in a batch");
    }
}

// The engine gives the reason only in its log. A failed allocation names itself; everything else is the file or its
// settings.
[[noreturn]] void fail_to_open() {
    const std::string log = take_log();
    if (log.find("ctx_other") != std::string::npos) {
        fail(LLAMA_SPEC_ARGUMENT, "this model is a draft that computes with parts of its target: open it with target=, "
                "the target's context");
    }
    const bool is_memory = log.empty() || log.find("alloc") != std::string::npos;
    fail(is_memory ? LLAMA_SPEC_MEMORY : LLAMA_SPEC_ENGINE, "the engine could not make the context" +
            (log.empty() ? "" : " (the engine says: " + log + ")"));
}

// The engine asserts at the first decode that the last n_rs_seq + 1 tokens fit one physical batch.
void prepare_undo(context_state & state, bool is_head) {
    const llama_model * model = state.model->model;
    if (is_head) {
        return; // a head's context keeps only keys and values, whatever memory the target has
    }
    if (!llama_model_is_recurrent(model) && !llama_model_is_hybrid(model)) {
        return;
    }
    const uint32_t n_rs_seq = llama_n_rs_seq(state.ctx);
    const uint32_t n_ubatch = llama_n_ubatch(state.ctx);
    if (n_rs_seq > 0 && n_ubatch < n_rs_seq + 2) {
        fail(LLAMA_SPEC_ARGUMENT, "`n_ubatch=" + std::to_string(n_ubatch) + "` is too small for `n_rs_seq=" +
                std::to_string(n_rs_seq) + "` snapshots; it must be at least two more");
    }
    state.n_undo.assign(llama_n_seq_max(state.ctx), 0);
    state.n_undone.assign(state.n_undo.size(), 0);
    state.seq_counts.assign(state.n_undo.size(), 0);
    state.states = recurrent_part(llama_get_memory(state.ctx));
}

// Refuses a draft of another target: the engine would assert, or read outside a tensor.
void prepare_draft(context_state & state, bool is_head) {
    const llama_model * model  = state.model->model;
    const llama_model * target = state.target != nullptr ? state.target->model->model : nullptr;
    const draft_kind * kind = is_head ? &MTP_KIND : find_draft_kind(model);
    if (kind == nullptr) {
        return;
    }
    const std::string why = target != nullptr ? kind->mismatch(model, target) : "";
    if (!why.empty()) {
        fail(LLAMA_SPEC_ARGUMENT, why);
    }
    try {
        state.draft = kind->open(model, target);
    } catch (const std::runtime_error & e) {
        fail(LLAMA_SPEC_ARGUMENT, e.what());
    }
}

uint64_t memory_bytes(const llama_context * ctx) {
    uint64_t n = 0;
    for (const auto & entry : llama_get_memory_breakdown(ctx)) {
        n += entry.second.context;
    }
    return n;
}

void attach_threads(context_state & state, int32_t n_threads) {
    compute_state & compute = *state.compute;
    if (compute.pool == nullptr) {
        ggml_threadpool_params params = ggml_threadpool_params_default(n_threads);
        // Polling lasts some milliseconds, about the time between two decodes. The default polls for a tenth of a
        // second.
        params.poll       = 1;
        compute.pool      = ggml_threadpool_new(&params);
        compute.n_threads = n_threads;
        if (compute.pool == nullptr) {
            fail(LLAMA_SPEC_MEMORY, "the threads could not be started");
        }
    }
    if (n_threads > compute.n_threads) {
        fail(LLAMA_SPEC_ARGUMENT, "a draft context cannot have more threads than its target's context (" +
                std::to_string(compute.n_threads) + ")");
    }
    llama_attach_threadpool(state.ctx, compute.pool, compute.pool);
}

} // namespace

int llama_spec_context_new(llama_spec_model * model, const llama_spec_context_params * params,
                           llama_spec_context * target, llama_spec_context ** out) {
    return guarded([&] {
        model->state->home.check("this model was loaded");
        if (target != nullptr) {
            open_context(target);
        }
        check_params(*params);
        if (params->op_offload && llama_spec_n_device_layers(model->state->model) == 0) {
            fail(LLAMA_SPEC_ARGUMENT, "`op_offload` is for models with layers on a device, and this one has none; load it with `n_gpu_layers`");
        }
        if (model->state->vocab_only) {
            fail(LLAMA_SPEC_UNSUPPORTED, "the model was loaded with vocab_only and has no weights; load it without");
        }
        if (!params->is_head && is_head_alone(model->state->model)) {
            fail(LLAMA_SPEC_UNSUPPORTED, "the file holds an MTP head and no layers: it drafts for another file, and gives no text");
        }

        // The engine checks this only with flash attention; without it, it reads keys at the wrong addresses.
        const auto type_k = (ggml_type) params->type_k;
        if (const uint32_t n = llama_spec_odd_head(model->state->model, type_k); n > 0) {
            fail(LLAMA_SPEC_ARGUMENT, std::string("keys of the type ") + ggml_type_name(type_k) + " come in blocks of " +
                    std::to_string(ggml_blck_size(type_k)) + ", which do not divide this model's heads of " + std::to_string(n) +
                    "; choose `type_k=f16`");
        }

        auto state = std::make_shared<context_state>();
        state->model   = model->state;
        state->target  = target != nullptr ? target->state : nullptr;
        state->compute = target != nullptr ? target->state->compute : std::make_shared<compute_state>();
        in_use lock(state->compute->busy, "the target's context");
        prepare_draft(*state, params->is_head);

        begin_counting_memory();
        try {
            check_cells(params->n_ctx, llama_spec_key_bytes(model->state->model, (ggml_type) params->type_k, params->swa_full,
                    params->is_head));
            state->ctx = llama_init_from_model(model->state->model, engine_params(*params, *state));
        } catch (const no_room & e) {
            fail(LLAMA_SPEC_MEMORY, "with `n_ctx=" + std::to_string(params->n_ctx) + "`, `n_seq_max=" +
                    std::to_string(params->n_seq_max) + "` and `n_rs_seq=" + std::to_string(params->n_rs_seq) + "` " + e.why);
        } catch (const engine_abort & e) {
            fail(LLAMA_SPEC_ENGINE, std::string("the context could not be made: the engine stopped at ") + e.what());
        }
        if (state->ctx == nullptr) {
            fail_to_open();
        }
        const bool is_capped = params->n_outputs_max > 0 && !llama_model_has_encoder(state->model->model);
        state->n_outputs_max = (int32_t) (is_capped ? params->n_outputs_max : llama_n_batch(state->ctx));
        state->outputs_all   = params->embeddings && !params->is_head;
        state->keeps_windows = params->swa_full;
        prepare_undo(*state, params->is_head);
        if (state->draft) {
            state->draft->prepare(state->ctx);
        }
        const int32_t n_row = state->draft ? state->draft->n_row_inp() : 0;
        state->n_row_inp = n_row > 0 ? n_row : llama_model_n_embd_inp(state->model->model);
        attach_threads(*state, std::max(params->n_threads, params->n_threads_batch));
        if (params->n_layers > 0) {
            state->layers.assign(params->layers, params->layers + params->n_layers);
            llama_spec_enable_layer_inputs(state->ctx, state->layers.data(), state->layers.size());
        }
        const uint32_t n_batch = llama_n_batch(state->ctx);
        state->seq_ptrs.reserve(n_batch + 1);
        state->ones.assign(n_batch, 1);
        state->n_pos_per_row = llama_spec_n_pos_per_row(state->model->model);
        state->n_positions   = llama_spec_n_positions(state->model->model);
        *out = new llama_spec_context{ std::move(state) };
    });
}

int llama_spec_context_free(llama_spec_context * ctx) {
    return guarded([&] {
        if (ctx == nullptr || !ctx->state->home.is_here()) {    // NULL: one that could not be opened
            return;
        }
        if (ctx->state->in_call.load(std::memory_order_acquire)) {
            fail(LLAMA_SPEC_BUSY, "the context is in use by another thread");
        }
        delete ctx;
    });
}

int llama_spec_context_get_info(llama_spec_context * ctx, llama_spec_context_info * out) {
    return guarded([&] {
        const llama_context * c = ctx->state->ctx;
        out->n_ctx         = llama_n_ctx(c);
        out->n_ctx_seq     = llama_n_ctx_seq(c);
        out->n_batch       = llama_n_batch(c);
        out->n_ubatch      = llama_n_ubatch(c);
        out->n_seq_max     = llama_n_seq_max(c);
        out->n_rs_seq      = llama_n_rs_seq(c);
        out->n_host_copies = ctx->state->n_host_copies;
        out->n_graphs_reused = llama_perf_context(c).n_reused;
        out->n_threads     = ctx->state->compute->n_threads;
        out->memory_bytes  = memory_bytes(c);
        out->n_candidates  = ctx->state->draft ? ctx->state->draft->n_candidates() : 0;
        out->n_draft_row   = ctx->state->draft ? ctx->state->draft->n_row() : 0;
        out->n_row         = ctx->state->n_row_inp;
        out->has_grid      = ctx->state->n_pos_per_row > 1;
        out->pooling_type  = llama_pooling_type(c);
        out->has_memory    = llama_get_memory(c) != nullptr;
    });
}

void llama_spec_limit_memory(uint64_t n_bytes) {
    limit_memory(n_bytes);
}

void llama_spec_cancel(llama_spec_context * ctx, bool value) {
    ctx->state->cancelled.store(value, std::memory_order_relaxed);
}

int llama_spec_rest(llama_spec_context * ctx) {
    // Waits for a running graph: pausing a worker that has not begun it would leave the other threads waiting.
    return guarded_call(ctx, [&](context_state & state) { ggml_threadpool_pause(state.compute->pool); });
}

int64_t llama_spec_add_views(llama_spec_context * ctx, int32_t n) {
    return guarded_or<int64_t>(0, [&] { return ctx->state->home.is_here() ? llama_spec_count_views(ctx->state->ctx, n) : 0; });
}
