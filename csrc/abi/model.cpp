#include "abi/handles.h"
#include "abi/rpc.h"
#include "base/model_facts.h"
#include "checks/gguf_check.h"
#include "checks/memory_room.h"
#include "drafts/draft_kind.h"
#include "hooks/layer_inputs.h"
#include "hooks/llama-spec-hooks.h"
#include "hooks/snapshots.h"
#include "kernels/rows.h"

#include "llama-ext.h"
#include "llama-model.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

using namespace llama_spec;

namespace {

// All devices that can take layers: first the servers', so that consecutive layers share a machine, then this
// machine's.
std::vector<ggml_backend_dev_t> all_devices(const llama_spec_model_params & in, model_state & state) {
    std::vector<ggml_backend_dev_t> out;
    for (int32_t i = 0; i < in.n_servers; ++i) {
        state.servers.emplace_back();
        const auto found = server_devices(in.servers[i], state.servers.back());
        out.insert(out.end(), found.begin(), found.end());
    }
    for (size_t k = 0; k < ggml_backend_dev_count(); ++k) {
        ggml_backend_dev_t dev = ggml_backend_dev_get(k);
        const auto type = ggml_backend_dev_type(dev);
        if (type != GGML_BACKEND_DEVICE_TYPE_CPU && type != GGML_BACKEND_DEVICE_TYPE_ACCEL) {
            out.push_back(dev);
        }
    }
    return out;
}

// The devices with these names, and the terminator that the engine expects.
std::vector<ggml_backend_dev_t> named_devices(const llama_spec_model_params & in, model_state & state) {
    const auto all = all_devices(in, state);
    std::vector<ggml_backend_dev_t> out;
    if (in.n_devices == 0) {
        out = all;
    }
    for (int32_t i = 0; i < in.n_devices; ++i) {
        ggml_backend_dev_t found = nullptr;
        std::string names;
        for (ggml_backend_dev_t dev : all) {
            const char * name = device_name(dev);
            names += (names.empty() ? "" : ", ") + std::string(name);
            found = std::strcmp(name, in.devices[i]) == 0 ? dev : found;
        }
        if (found == nullptr) {
            fail(LLAMA_SPEC_ARGUMENT, std::string("devices: there is no device '") + in.devices[i] + "' that takes layers; there " +
                    (names.empty() ? "is none" : "are " + names));
        }
        require(std::find(out.begin(), out.end(), found) == out.end(), "devices names a device twice");
        out.push_back(found);
    }
    out.push_back(nullptr);
    return out;
}

llama_model_params engine_params(const llama_spec_model_params & in, model_state & state) {
    llama_model_params out = llama_model_default_params();
    out.n_gpu_layers    = in.n_gpu_layers;
    out.main_gpu        = in.main_gpu;
    out.split_mode      = (llama_split_mode) in.split_mode;
    if (in.n_gpu_layers == 0) {
        // Even without layers the engine would open a device, allocate memory on it and send it wide batches.
        static ggml_backend_dev_t none[] = { nullptr };
        out.devices    = none;
        out.split_mode = LLAMA_SPLIT_MODE_LAYER;
    }
    out.use_extra_bufts = in.repack;
    out.vocab_only      = in.vocab_only;
    out.load_mtp        = in.load_mtp;
    out.load_mode       = in.use_mmap ? (in.use_mlock ? LLAMA_LOAD_MODE_MMAP_MLOCK : LLAMA_LOAD_MODE_MMAP)
                                      : (in.use_mlock ? LLAMA_LOAD_MODE_MLOCK : LLAMA_LOAD_MODE_NONE);
    if (in.n_tensor_split > 0) {
        require((size_t) in.n_tensor_split <= llama_max_devices(), "`tensor_split` has more entries than there can be devices");
        state.tensor_split.assign(llama_max_devices(), 0.0f);
        std::copy(in.tensor_split, in.tensor_split + in.n_tensor_split, state.tensor_split.begin());
        out.tensor_split = state.tensor_split.data();
    }
    out.progress_callback           = in.progress;
    out.progress_callback_user_data = in.progress_user;
    return out;
}

// The overrides as the engine reads them: an entry without a key ends the list.
std::vector<llama_model_kv_override> engine_overrides(const llama_spec_model_params & in) {
    std::vector<llama_model_kv_override> out;
    for (int32_t i = 0; i < in.n_overrides; ++i) {
        const llama_spec_override & from = in.overrides[i];
        llama_model_kv_override to = {};
        require(std::strlen(from.key) < sizeof(to.key), "a key of kv_overrides is too long");
        std::strcpy(to.key, from.key);
        switch (from.kind) {
            case 0: to.tag = LLAMA_KV_OVERRIDE_TYPE_INT;   to.val_i64  = from.whole;      break;
            case 1: to.tag = LLAMA_KV_OVERRIDE_TYPE_FLOAT; to.val_f64  = from.real;       break;
            case 2: to.tag = LLAMA_KV_OVERRIDE_TYPE_BOOL;  to.val_bool = from.whole != 0; break;
            default:
                require(std::strlen(from.text) < sizeof(to.val_str), "a text of kv_overrides is too long");
                to.tag = LLAMA_KV_OVERRIDE_TYPE_STR;
                std::strcpy(to.val_str, from.text);
        }
        out.push_back(to);
    }
    out.push_back({});
    return out;
}

// The bytes of a file, or of all parts of a split one by its first.
uint64_t n_file_bytes(const std::string & path) {
    std::error_code error;
    const uint64_t n_bytes = std::filesystem::file_size(path, error);
    const size_t of = path.rfind("-of-");
    const int n_parts = of == std::string::npos ? 1 : std::max(1, std::atoi(path.c_str() + of + 4));
    return error ? 0 : n_bytes * (uint64_t) n_parts;
}

uint64_t n_repacked_bytes(const llama_model & model) {
    uint64_t n_bytes = 0;
    for (const auto & [name, tensor] : model.tensors_by_name) {
        if (tensor->buffer != nullptr && ggml_backend_buffer_get_type(tensor->buffer) == pyllama_spec_repacked_buffer_type()) {
            n_bytes += ggml_nbytes(tensor);
        }
    }
    return n_bytes;
}

// The engine returns the number of bytes, or a negative number, and truncates to the given size.
int32_t text_result(int32_t n) {
    return n < 0 ? LLAMA_SPEC_ARGUMENT : n;
}

} // namespace

int llama_spec_model_load(const char * path, const llama_spec_model_params * params, llama_spec_model ** out) {
    return guarded([&] {
        check_gguf(path);
        auto state = std::make_shared<model_state>();
        state->vocab_only = params->vocab_only;
        try {
            const auto overrides = engine_overrides(*params);
            auto raw = engine_params(*params, *state);
            auto devices = named_devices(*params, *state);
            if (params->n_devices + params->n_servers > 0 && params->n_gpu_layers != 0) {
                raw.devices = devices.data();
            }
            raw.kv_overrides = params->n_overrides > 0 ? overrides.data() : nullptr;
            // Memory of the process, unlike pages of the file, cannot be dropped while other buffers are allocated.
            const bool repacks = params->repack && !params->use_mlock && has_room(3 * n_file_bytes(path) / 2);
            pyllama_spec_set_repacking(repacks);
            // Where we have kernels, the engine's own order of weights would miss them.
            raw.use_extra_bufts = raw.use_extra_bufts && (repacks || pyllama_spec_repacked_buffer_type() == nullptr);
            state->model = llama_model_load_from_file(path, raw);
        } catch (const engine_abort & e) {
            fail(LLAMA_SPEC_LOAD, std::string("the engine refused the file at ") + e.what());
        }
        if (state->model == nullptr) {
            fail(LLAMA_SPEC_LOAD, "the engine could not load the file");
        }
        *out = new llama_spec_model{ std::move(state) };
    });
}

void llama_spec_model_free(llama_spec_model * model) {
    guarded([&] {
        // In a forked child, a thread of the parent may have been using the model: leaks it.
        if (model != nullptr && model->state->home.is_here()) {
            delete model;
        }
    });
}

int llama_spec_model_get_info(llama_spec_model * handle, llama_spec_model_info * out) {
    return guarded([&] {
        const llama_model * m = handle->state->model;
        *out = {};
        out->arch          = llama_spec_arch_name(m);
        out->n_vocab       = handle->state->n_vocab();
        out->n_embd        = llama_model_n_embd(m);
        out->n_embd_inp    = llama_model_n_embd_inp(m);
        out->n_embd_out    = llama_model_n_embd_out(m);
        out->n_layer       = llama_model_n_layer(m);
        // A model loaded with vocab_only has no layers; asking for their heads would assert.
        out->n_head        = out->n_layer > 0 ? llama_model_n_head(m)    : 0;
        out->n_head_kv     = out->n_layer > 0 ? llama_model_n_head_kv(m) : 0;
        out->n_ctx_train   = llama_model_n_ctx_train(m);
        out->n_swa         = llama_model_n_swa(m);
        out->n_params      = llama_model_n_params(m);
        out->size_bytes    = llama_model_size(m);
        out->has_encoder   = llama_model_has_encoder(m);
        out->has_decoder   = llama_model_has_decoder(m);
        out->is_recurrent  = llama_model_is_recurrent(m);
        out->is_hybrid     = llama_model_is_hybrid(m);
        out->is_diffusion  = llama_model_is_diffusion(m);
        out->can_roll_back = llama_spec_has_snapshots(*m);
        out->n_device_layers = llama_spec_n_device_layers(m);
        const llama_spec::state_sizes sizes = llama_spec::state_sizes_of(*m);
        out->state_bytes          = sizes.state;
        out->snapshot_base_bytes  = sizes.snapshot_base;
        out->snapshot_token_bytes = sizes.snapshot_token;
        out->repacked_bytes       = n_repacked_bytes(*m);
        out->n_target_layers = (int32_t) llama_model_target_layer_ids_n(m);
        out->n_heads  = n_heads(m);
        out->has_head = head_fault(m).empty();
        out->is_head_alone = !handle->state->vocab_only && is_head_alone(m);
        const head_weights head = weights_of_head(m);
        out->head_bytes = head.n_bytes;
        out->head_type  = ggml_type_name(head.type);
        const draft_kind * kind = find_draft_kind(m);
        out->block  = kind != nullptr && kind->block != nullptr ? kind->block(m) : llama_spec_block{};
    });
}

int32_t llama_spec_most_heads(const char * arch) {
    return most_heads(arch);
}

int llama_spec_model_device(llama_spec_model * model, int32_t i, const char ** name, int32_t * n_layers) {
    return guarded([&] {
        const auto placement = llama_spec_placement(model->state->model);
        const bool is_one = (size_t) i < placement.size();
        *name     = is_one ? device_name(placement[(size_t) i].first) : nullptr;
        *n_layers = is_one ? placement[(size_t) i].second : 0;
    });
}

int llama_spec_model_desc(llama_spec_model * model, char * buf, size_t size) {
    return guarded([&] { llama_model_desc(model->state->model, buf, size); });
}

int llama_spec_model_target_layers(llama_spec_model * model, int32_t * out) {
    return guarded([&] {
        const int32_t * ids = llama_model_target_layer_ids(model->state->model);
        std::copy(ids, ids + llama_model_target_layer_ids_n(model->state->model), out);
    });
}

int llama_spec_model_check_draft(llama_spec_model * draft, llama_spec_model * target) {
    return guarded([&] {
        const llama_model * d = draft->state->model;
        const llama_model * t = target->state->model;
        const draft_kind * kind = find_draft_kind(d);
        if (kind == nullptr && n_heads(d) > 0) {
            kind = &MTP_KIND;
        }
        if (kind == nullptr) {
            fail(LLAMA_SPEC_UNSUPPORTED, std::string("a model of architecture '") + llama_spec_arch_name(d) + "' is not a draft that this "
                    "version knows; it knows " + draft_kind_names());
        }
        require(!draft->state->vocab_only && !target->state->vocab_only, "a model was loaded with vocab_only; load it without");
        const std::string why = kind->mismatch(d, t);
        if (!why.empty()) {
            fail(LLAMA_SPEC_ARGUMENT, why);
        }
    });
}

int32_t llama_spec_model_n_meta(llama_spec_model * model) {
    return llama_model_meta_count(model->state->model);
}

int32_t llama_spec_model_meta_key(llama_spec_model * model, int32_t i, char * buf, size_t size) {
    return number_or_status([&] { return text_result(llama_model_meta_key_by_index(model->state->model, i, buf, size)); });
}

int32_t llama_spec_model_meta_value(llama_spec_model * model, int32_t i, char * buf, size_t size) {
    return number_or_status([&] { return text_result(llama_model_meta_val_str_by_index(model->state->model, i, buf, size)); });
}

const char * llama_spec_model_chat_template(llama_spec_model * model, const char * name) {
    return llama_model_chat_template(model->state->model, name);
}

int llama_spec_model_probe_layers(llama_spec_model * model, const int32_t * layers, int32_t n_layers) {
    return guarded([&] {
        llama_model * m = model->state->model;
        model->state->home.check("this model was loaded");
        for (int32_t i = 0; i < n_layers; ++i) {
            if (layers[i] != LLAMA_SPEC_HEAD_ROWS && (layers[i] < 0 || layers[i] > llama_model_n_layer(m))) {
                fail(LLAMA_SPEC_ARGUMENT, "layer " + std::to_string(layers[i]) + " is outside 0 .. " +
                        std::to_string(llama_model_n_layer(m)) + ", the layer inputs of this model");
            }
        }
        const std::string arch = std::string("architecture '") + llama_spec_arch_name(m) + "'";
        if (llama_model_has_encoder(m) || !llama_model_has_decoder(m)) {
            fail(LLAMA_SPEC_UNSUPPORTED, arch + " has an encoder: layer inputs are taken from decoder-only models");
        }
        if (is_head_alone(m)) {
            fail(LLAMA_SPEC_UNSUPPORTED, "the file holds an MTP head and no layers");
        }
        // Builds the smallest context that has a graph: building it shows which inputs are missing.
        llama_context_params params = llama_context_default_params();
        params.n_ctx     = 256;
        params.n_batch   = 16;
        params.n_ubatch  = 16;
        params.n_outputs_max = 1;   // makes the graph drop rows: it must still hold the last layer's whole output
        params.n_threads = params.n_threads_batch = 1;
        std::unique_ptr<llama_context, decltype(&llama_free)> ctx(llama_init_from_model(m, params), llama_free);
        if (!ctx) {
            fail(LLAMA_SPEC_UNSUPPORTED, arch + " cannot be opened on its own to look for layer inputs");
        }
        if (llama_get_memory(ctx.get()) == nullptr) {
            fail(LLAMA_SPEC_UNSUPPORTED, arch + " keeps no memory of past tokens: it is not a model that generates text");
        }
        try {
            llama_spec_enable_layer_inputs(ctx.get(), layers, (size_t) n_layers);
        } catch (const std::exception & e) {
            fail(LLAMA_SPEC_UNSUPPORTED, e.what());
        }
    });
}

// ---- LoRA adapters: small matrices beside a model's weights, which a context enables

// The engine keeps an adapter with its model and frees both together.
struct llama_spec_adapter {
    std::shared_ptr<model_state> model;
    llama_adapter_lora *         adapter = nullptr;
};

int llama_spec_adapter_load(llama_spec_model * model, const char * path, llama_spec_adapter ** out) {
    return guarded([&] {
        model->state->home.check("this model was loaded");
        if (model->state->vocab_only) {
            fail(LLAMA_SPEC_UNSUPPORTED, "the model was loaded with vocab_only and has no weights; load it without");
        }
        llama_adapter_lora * adapter = nullptr;
        try {
            adapter = llama_adapter_lora_init(model->state->model, path);
        } catch (const engine_abort & e) {
            fail(LLAMA_SPEC_LOAD, std::string("the engine refused the file at ") + e.what());
        }
        if (adapter == nullptr) {
            fail(LLAMA_SPEC_LOAD, "the file is not an adapter for this model");
        }
        *out = new llama_spec_adapter{ model->state, adapter };
    });
}

void llama_spec_adapter_free(llama_spec_adapter * adapter) {
    guarded([&] { delete adapter; });
}

int llama_spec_set_adapters(llama_spec_context * ctx, llama_spec_adapter ** adapters, const float * scales, int32_t n) {
    return guarded_call(ctx, [&](context_state & state) {
        std::vector<llama_adapter_lora *> raw;
        for (int32_t i = 0; i < n; ++i) {
            require(adapters[i]->model == state.model, "the adapter was loaded for another model");
            raw.push_back(adapters[i]->adapter);
        }
        std::vector<float> values(scales, scales + n);
        if (llama_set_adapters_lora(state.ctx, raw.data(), raw.size(), values.data()) != 0) {
            fail(LLAMA_SPEC_ENGINE, "the engine did not take the adapters");
        }
    });
}

// ---- types and quantisation

namespace {

const struct { const char * name; llama_ftype type; } TYPES[] = {
    { "F32", LLAMA_FTYPE_ALL_F32 },          { "F16", LLAMA_FTYPE_MOSTLY_F16 },      { "BF16", LLAMA_FTYPE_MOSTLY_BF16 },
    { "Q4_0", LLAMA_FTYPE_MOSTLY_Q4_0 },     { "Q4_1", LLAMA_FTYPE_MOSTLY_Q4_1 },    { "Q5_0", LLAMA_FTYPE_MOSTLY_Q5_0 },
    { "Q5_1", LLAMA_FTYPE_MOSTLY_Q5_1 },     { "Q8_0", LLAMA_FTYPE_MOSTLY_Q8_0 },    { "Q2_K", LLAMA_FTYPE_MOSTLY_Q2_K },
    { "Q3_K_S", LLAMA_FTYPE_MOSTLY_Q3_K_S }, { "Q3_K_M", LLAMA_FTYPE_MOSTLY_Q3_K_M },
    { "Q3_K_L", LLAMA_FTYPE_MOSTLY_Q3_K_L }, { "Q4_K_S", LLAMA_FTYPE_MOSTLY_Q4_K_S },
    { "Q4_K_M", LLAMA_FTYPE_MOSTLY_Q4_K_M }, { "Q5_K_S", LLAMA_FTYPE_MOSTLY_Q5_K_S },
    { "Q5_K_M", LLAMA_FTYPE_MOSTLY_Q5_K_M }, { "Q6_K", LLAMA_FTYPE_MOSTLY_Q6_K },
    { "IQ4_NL", LLAMA_FTYPE_MOSTLY_IQ4_NL }, { "IQ4_XS", LLAMA_FTYPE_MOSTLY_IQ4_XS },
};

bool same_name(const char * a, const char * b) {
    for (; *a != 0 && *b != 0; ++a, ++b) {
        if (std::toupper((unsigned char) *a) != std::toupper((unsigned char) *b)) {
            return false;
        }
    }
    return *a == *b;
}

} // namespace

int32_t llama_spec_type_id(const char * name) {
    return number_or_status([&]() -> int32_t {
        for (int32_t i = 0; i < GGML_TYPE_COUNT; ++i) {
            const char * known = ggml_type_name((ggml_type) i);
            if (known != nullptr && same_name(known, name)) {
                return i;
            }
        }
        fail(LLAMA_SPEC_ARGUMENT, std::string("the engine has no type ") + name);
    });
}

const char * llama_spec_quantize_type(int32_t i) {
    const int32_t n = (int32_t) (sizeof(TYPES) / sizeof(TYPES[0]));
    return i >= 0 && i < n ? TYPES[i].name : nullptr;
}

int llama_spec_quantize(const char * path, const char * out_path, const char * type, int32_t n_threads, bool pure) {
    return guarded([&] {
        llama_model_quantize_params params = llama_model_quantize_default_params();
        bool found = false;
        for (const auto & entry : TYPES) {
            if (same_name(entry.name, type)) {
                params.ftype = entry.type;
                found = true;
            }
        }
        require(found, "there is no such quantisation type");
        params.nthread          = n_threads;
        params.pure             = pure;
        params.allow_requantize = true;   // what quantised weights have lost stays lost
        if (llama_model_quantize(path, out_path, &params) != 0) {
            fail(LLAMA_SPEC_LOAD, "the engine could not quantise the file");
        }
    });
}
