// MinGW's linker keeps all of common.cpp and sampling.cpp, since tables of exceptions name each function. What only their
// unused functions call is here, and never runs.

#ifdef _WIN32

#include "build-info.h"
#include "fit.h"
#include "log.h"
#include "reasoning-budget.h"
#include "speculative.h"

void common_log_set_prefix(common_log *, bool) {}
void common_log_set_timestamps(common_log *, bool) {}
void common_log_default_callback(ggml_log_level, const char *, void *) {}

int llama_build_number() { return 0; }
const char * llama_commit() { return ""; }
const char * llama_compiler() { return ""; }
const char * llama_build_target() { return ""; }

common_params common_base_params_to_speculative(const common_params & params) { return params; }
void common_memory_breakdown_print(const llama_context *) {}
common_params_fit_status common_fit_params(const char *, llama_model_params *, llama_context_params *, float *,
        llama_model_tensor_buft_override *, size_t *, uint32_t, const common_fit_extra_model *, ggml_log_level) {
    return COMMON_PARAMS_FIT_STATUS_ERROR;
}

llama_sampler * common_reasoning_budget_init(const llama_vocab *, const std::vector<llama_tokens> &,
        const std::vector<llama_tokens> &, const llama_tokens &, int32_t, common_reasoning_budget_state) {
    return nullptr;
}
common_reasoning_budget_state common_reasoning_budget_get_state(const llama_sampler *) { return REASONING_BUDGET_IDLE; }
const llama_tokens * common_reasoning_budget_get_end_match(const llama_sampler *) { return nullptr; }
bool common_reasoning_budget_force(llama_sampler *) { return false; }

#endif
