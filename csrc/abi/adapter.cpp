// LoRA adapters: small matrices beside a model's weights, which a context enables.

#include "abi/handles.h"

#include <string>
#include <vector>

using namespace llama_spec;

// The engine keeps an adapter with its model and frees both together.
struct llama_spec_adapter {
    std::shared_ptr<model_state> model;
    llama_adapter_lora *         adapter = nullptr;
};

int llama_spec_adapter_load(llama_spec_model * model, const char * path, llama_spec_adapter ** out) {
    return guarded([&] {
        require(model != nullptr && model->state && path != nullptr && out != nullptr, "the model is closed");
        *out = nullptr;
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
    return guarded([&] {
        require(n == 0 || (adapters != nullptr && scales != nullptr), "adapters and their scales are needed");
        context_call call(ctx);
        std::vector<llama_adapter_lora *> raw;
        for (int32_t i = 0; i < n; ++i) {
            require(adapters[i] != nullptr && adapters[i]->model == call.state.model, "the adapter was loaded for another model");
            raw.push_back(adapters[i]->adapter);
        }
        std::vector<float> values(scales, scales + n);
        if (llama_set_adapters_lora(call.state.ctx, raw.data(), raw.size(), values.data()) != 0) {
            fail(LLAMA_SPEC_ENGINE, "the engine did not take the adapters");
        }
    });
}
