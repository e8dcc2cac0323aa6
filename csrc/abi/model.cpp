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
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

using namespace llama_spec;

namespace {

llama_spec_model & checked(llama_spec_model * model) {
    require(model != nullptr && model->state && model->state->model != nullptr, "the model is closed");
    return *model;
}

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
    if (in.tensor_split != nullptr && in.n_tensor_split > 0) {
        require((size_t) in.n_tensor_split <= llama_max_devices(), "tensor_split has more entries than there can be devices");
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
        require(from.key != nullptr && std::strlen(from.key) < sizeof(to.key), "a key of kv_overrides is too long");
        std::strcpy(to.key, from.key);
        switch (from.kind) {
            case 0: to.tag = LLAMA_KV_OVERRIDE_TYPE_INT;   to.val_i64  = from.whole;      break;
            case 1: to.tag = LLAMA_KV_OVERRIDE_TYPE_FLOAT; to.val_f64  = from.real;       break;
            case 2: to.tag = LLAMA_KV_OVERRIDE_TYPE_BOOL;  to.val_bool = from.whole != 0; break;
            default:
                require(from.text != nullptr && std::strlen(from.text) < sizeof(to.val_str), "a text of kv_overrides is too long");
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
        require(path != nullptr && params != nullptr && out != nullptr, "a path, parameters and a place for the result are needed");
        *out = nullptr;
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
        const llama_model * m = checked(handle).state->model;
        *out = {};
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
    });
}

const char * llama_spec_model_arch(llama_spec_model * model) {
    const char * out = "";
    guarded([&] { out = llama_spec_arch_name(checked(model).state->model); });
    return out;
}

int llama_spec_model_get_head(llama_spec_model * model, uint64_t * n_bytes, const char ** type, double * bits) {
    return guarded([&] {
        const head_weights found = weights_of_head(checked(model).state->model);
        *n_bytes = found.n_bytes;
        *type    = found.n_bytes > 0 ? ggml_type_name(found.type) : nullptr;
        *bits    = found.n_bytes > 0 ? 8.0 * (double) ggml_type_size(found.type) / (double) ggml_blck_size(found.type) : 0.0;
    });
}

int32_t llama_spec_most_heads(const char * arch) {
    int32_t out = 0;
    guarded([&] { out = arch != nullptr ? most_heads(arch) : 0; });
    return out;
}

int llama_spec_model_device(llama_spec_model * model, int32_t i, const char ** name, int32_t * n_layers) {
    return guarded([&] {
        const auto placement = llama_spec_placement(checked(model).state->model);
        require(i >= 0, "devices are counted from 0");
        const bool is_one = (size_t) i < placement.size();
        *name     = is_one ? device_name(placement[(size_t) i].first) : nullptr;
        *n_layers = is_one ? placement[(size_t) i].second : 0;
    });
}

int llama_spec_model_desc(llama_spec_model * model, char * buf, size_t size) {
    return guarded([&] { llama_model_desc(checked(model).state->model, buf, size); });
}

int llama_spec_model_target_layers(llama_spec_model * model, int32_t * out, int32_t n_max) {
    return guarded([&] {
        const llama_model * m = checked(model).state->model;
        const int32_t n = (int32_t) llama_model_target_layer_ids_n(m);
        require(n <= n_max, "the place for the layer ids is too small");
        const int32_t * ids = llama_model_target_layer_ids(m);
        std::copy(ids, ids + n, out);
    });
}

int llama_spec_model_check_draft(llama_spec_model * draft, llama_spec_model * target) {
    return guarded([&] {
        const llama_model * d = checked(draft).state->model;
        const llama_model * t = checked(target).state->model;
        const draft_kind * kind = find_draft_kind(d);
        if (kind == nullptr && n_heads(d) > 0) {
            kind = &mtp_kind();
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

int llama_spec_model_get_ngrams(llama_spec_model * model, llama_spec_ngrams * out) {
    return guarded([&] {
        const llama_model * m = checked(model).state->model;
        const draft_kind * kind = find_draft_kind(m);
        *out = kind != nullptr ? kind->ngrams(m) : llama_spec_ngrams{};
    });
}

int llama_spec_model_get_block(llama_spec_model * model, llama_spec_block * out) {
    return guarded([&] {
        const llama_model * m = checked(model).state->model;
        const draft_kind * kind = find_draft_kind(m);
        *out = kind != nullptr ? kind->block(m) : llama_spec_block{};
    });
}

int32_t llama_spec_model_n_meta(llama_spec_model * model) {
    int32_t n = 0;
    const int rc = guarded([&] { n = llama_model_meta_count(checked(model).state->model); });
    return rc == LLAMA_SPEC_OK ? n : rc;
}

int32_t llama_spec_model_meta_key(llama_spec_model * model, int32_t i, char * buf, size_t size) {
    int32_t n = 0;
    const int rc = guarded([&] { n = text_result(llama_model_meta_key_by_index(checked(model).state->model, i, buf, size)); });
    return rc == LLAMA_SPEC_OK ? n : rc;
}

int32_t llama_spec_model_meta_value(llama_spec_model * model, int32_t i, char * buf, size_t size) {
    int32_t n = 0;
    const int rc = guarded([&] { n = text_result(llama_model_meta_val_str_by_index(checked(model).state->model, i, buf, size)); });
    return rc == LLAMA_SPEC_OK ? n : rc;
}

const char * llama_spec_model_chat_template(llama_spec_model * model, const char * name) {
    const char * out = nullptr;
    guarded([&] { out = llama_model_chat_template(checked(model).state->model, name); });
    return out;
}

int llama_spec_model_probe_layers(llama_spec_model * model, const int32_t * layers, int32_t n_layers) {
    return guarded([&] {
        llama_model * m = checked(model).state->model;
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
