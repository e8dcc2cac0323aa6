// Builds sampler chains. The samplers have the order of llama.cpp's own programs.

#include "abi/grammar_copy.h"
#include "abi/handles.h"
#include "checks/grammar_check.h"
#include "checks/hidden_tokens.h"

#include "llama-grammar.h"

#include <algorithm>
#include <cmath>
#include <string>

using namespace llama_spec;

namespace {

void add(llama_sampler * chain, llama_sampler * sampler, const char * what) {
    if (sampler == nullptr) {
        fail(LLAMA_SPEC_ARGUMENT, std::string("the engine refused the parameters of ") + what);
    }
    llama_sampler_chain_add(chain, sampler);
}

void check_params(const llama_spec_sampler_params & p, int32_t n_vocab) {
    for (float value : { p.temperature, p.top_p, p.min_p, p.typical_p, p.top_n_sigma, p.xtc_probability, p.xtc_threshold,
                         p.repeat_penalty, p.frequency_penalty, p.presence_penalty, p.dry_multiplier, p.dry_base,
                         p.mirostat_tau, p.mirostat_eta }) {
        require(std::isfinite(value), "a sampling parameter is not a finite number");
    }
    require(p.repeat_penalty > 0.0f, "repeat_penalty must be above 0");
    require(p.mirostat >= 0 && p.mirostat <= 2, "mirostat must be 0, 1 or 2");
    for (int32_t i = 0; i < p.n_trigger_tokens + p.n_grammar_prefill; ++i) {
        const int32_t id = i < p.n_trigger_tokens ? p.trigger_tokens[i] : p.grammar_prefill[i - p.n_trigger_tokens];
        require(id >= 0 && id < n_vocab, "a token of the grammar's triggers or prefill is outside the vocabulary");
    }
    for (int32_t i = 0; i < p.n_bias; ++i) {
        if (p.bias_ids[i] < 0 || p.bias_ids[i] >= n_vocab) {
            fail(LLAMA_SPEC_ARGUMENT, "logit_bias names id " + std::to_string(p.bias_ids[i]) + ", outside 0 .. " +
                    std::to_string(n_vocab - 1));
        }
    }
}

// How many past tokens a penalty reads; -1 means the model's context length. DRY allocates that many at once.
int32_t window(int32_t last_n, const model_state & model) {
    constexpr int32_t MAX_WINDOW = 1 << 22;
    return std::min(last_n < 0 ? std::max(llama_model_n_ctx_train(model.model), 0) : last_n, MAX_WINDOW);
}

// Biases and penalties come before the chain: logit_changes.h.
void add_dry(llama_sampler * chain, const llama_spec_sampler_params & p, const model_state & model) {
    if (p.dry_multiplier != 0.0f) {
        add(chain, llama_sampler_init_dry(model.vocab(), p.dry_multiplier, p.dry_base, p.dry_allowed_length,
                window(p.dry_penalty_last_n, model), p.dry_breakers, (size_t) p.n_dry_breakers), "DRY");
    }
}

// How many of the likeliest candidates suffice for the chain; 0 if its first sampler needs all candidates.
int32_t n_top_of(const llama_spec_sampler_params & p) {
    const bool is_first = p.temperature > 0.0f && p.mirostat == 0 && p.dry_multiplier == 0.0f && p.top_n_sigma <= 0.0f;
    return is_first ? std::max(p.top_k, 0) : 0;
}

void add_choice(llama_sampler * chain, const llama_spec_sampler_params & p, int32_t n_vocab) {
    const size_t keep = (size_t) std::max(p.min_keep, 1);
    if (p.temperature <= 0.0f) {
        add(chain, llama_sampler_init_greedy(), "greedy");
        return;
    }
    if (p.mirostat != 0) {
        add(chain, llama_sampler_init_temp(p.temperature), "temperature");
        add(chain, p.mirostat == 1 ? llama_sampler_init_mirostat(n_vocab, p.seed, p.mirostat_tau, p.mirostat_eta, 100)
                                   : llama_sampler_init_mirostat_v2(p.seed, p.mirostat_tau, p.mirostat_eta), "mirostat");
        return;
    }
    if (p.top_n_sigma > 0.0f) {
        add(chain, llama_sampler_init_top_n_sigma(p.top_n_sigma), "top_n_sigma");
    }
    if (p.top_k > 0) {
        add(chain, llama_sampler_init_top_k(p.top_k), "top_k");
    }
    if (p.typical_p < 1.0f) {
        add(chain, llama_sampler_init_typical(p.typical_p, keep), "typical_p");
    }
    if (p.top_p < 1.0f) {
        add(chain, llama_sampler_init_top_p(p.top_p, keep), "top_p");
    }
    if (p.min_p > 0.0f) {
        add(chain, llama_sampler_init_min_p(p.min_p, keep), "min_p");
    }
    if (p.xtc_probability > 0.0f) {
        add(chain, llama_sampler_init_xtc(p.xtc_probability, p.xtc_threshold, keep, p.seed), "XTC");
    }
    add(chain, llama_sampler_init_temp(p.temperature), "temperature");
    if (!p.shared_noise) {
        add(chain, llama_sampler_init_dist(p.seed), "the draw");
    }
}

llama_sampler * make_grammar(const llama_spec_sampler_params & p, const model_state & model) {
    const char * root = p.grammar_root != nullptr ? p.grammar_root : "root";
    check_grammar(model.vocab(), p.grammar, root);
    check_triggers(p.grammar_triggers, p.n_grammar_triggers);
    llama_sampler * grammar = p.n_grammar_triggers > 0 || p.n_trigger_tokens > 0
        ? llama_sampler_init_grammar_lazy_patterns(model.vocab(), p.grammar, root, p.grammar_triggers,
                (size_t) p.n_grammar_triggers, p.trigger_tokens, (size_t) p.n_trigger_tokens)
        : llama_sampler_init_grammar(model.vocab(), p.grammar, root);
    if (grammar == nullptr) {
        fail(LLAMA_SPEC_ARGUMENT, std::string("the grammar could not be parsed (its root is '") + root + "')");
    }
    return grammar;
}

void show_prefill(llama_spec_sampler & s) {
    for (const int32_t id : s.grammar_prefill) {
        llama_sampler_accept(s.grammar, id);
        llama_grammar_accept_impl(*s.shadow, id);
    }
}

void make_shadow(llama_spec_sampler & s, const char * text, const char * root) {
    s.shadow = { llama_grammar_init_impl(s.model->vocab(), text, root, false, nullptr, 0, nullptr, 0), llama_grammar_free_impl };
    if (!s.shadow) {
        fail(LLAMA_SPEC_ARGUMENT, "the grammar could not be parsed");
    }
    s.shadow_begin = { copy_grammar(*s.shadow), llama_grammar_free_impl };
}

void watch_thoughts(llama_spec_sampler & s, const llama_spec_sampler_params & p) {
    s.thoughts.start = p.thought_start;
    s.thoughts.ends.assign(p.thought_ends, p.thought_ends + p.n_thought_ends);
    s.thoughts.is_open = p.thought_is_open;
    s.thoughts_begin   = s.thoughts;
    s.waiting_begin = { llama_grammar_init_impl(s.model->vocab(), p.grammar, p.grammar_root != nullptr ? p.grammar_root : "root",
                            true, p.grammar_triggers, (size_t) p.n_grammar_triggers, p.trigger_tokens, (size_t) p.n_trigger_tokens),
                        llama_grammar_free_impl };
    if (!s.waiting_begin) {
        fail(LLAMA_SPEC_ARGUMENT, "the grammar could not be parsed");
    }
    s.waiting = { copy_grammar(*s.waiting_begin), llama_grammar_free_impl };
}

} // namespace

int llama_spec_sampler_new(llama_spec_model * model, const llama_spec_sampler_params * params, llama_spec_sampler ** out) {
    return guarded([&] {
        require(model != nullptr && model->state && params != nullptr && out != nullptr, "the model is closed");
        *out = nullptr;
        model->state->home.check("this model was loaded");
        check_params(*params, model->state->n_vocab());
        auto s = std::make_unique<llama_spec_sampler>();
        s->model = model->state;
        s->chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
        s->changes = logit_changes(*params, window(params->penalty_last_n, *s->model));
        add_dry(s->chain, *params, *s->model);
        add_choice(s->chain, *params, s->model->n_vocab());
        s->is_argmax = params->dry_multiplier == 0.0f && params->temperature <= 0.0f;
        s->n_top     = n_top_of(*params);
        const bool draws = params->temperature > 0.0f && params->mirostat == 0;
        s->has_draw = draws && params->grammar == nullptr;
        s->noise    = { draws && params->shared_noise, params->seed, 0 };
        if (asks_of_answer(*params)) {
            auto & state = *s->model;
            std::call_once(state.pieces_made, [&] { state.pieces = std::make_unique<token_pieces>(state.vocab()); });
            s->rules = answer_rules(*params, state.vocab(), *state.pieces);
        }
        s->grammar_skips_thoughts = params->grammar_skips_thoughts;
        if (params->grammar != nullptr) {
            within(GRAMMAR_BOUNDS, [&] {
                s->grammar = make_grammar(*params, *s->model);
                if (params->n_grammar_triggers == 0 && params->n_trigger_tokens == 0) {
                    s->grammar_prefill.assign(params->grammar_prefill, params->grammar_prefill + params->n_grammar_prefill);
                    make_shadow(*s, params->grammar, params->grammar_root != nullptr ? params->grammar_root : "root");
                    s->hidden = std::make_shared<std::vector<bool>>(hidden_tokens(s->model->vocab(), params->grammar));
                }
                show_prefill(*s);
            });
            s->is_lazy = params->n_grammar_triggers > 0;
            if (params->thought_start != nullptr && (s->is_lazy || params->n_trigger_tokens > 0)) {
                within(GRAMMAR_BOUNDS, [&] { watch_thoughts(*s, *params); });
            }
        }
        *out = s.release();
    });
}

void llama_spec_sampler_free(llama_spec_sampler * sampler) {
    guarded([&] {
        if (sampler != nullptr && sampler->home.is_here()) {
            delete sampler;
        }
    });
}

int llama_spec_sampler_clone(llama_spec_sampler * sampler, llama_spec_sampler ** out) {
    return guarded([&] {
        auto & from = open_sampler(sampler);
        in_use lock(from.busy, "the sampler");
        auto s = std::make_unique<llama_spec_sampler>();
        s->model     = from.model;
        s->is_argmax = from.is_argmax;
        s->n_top     = from.n_top;
        s->has_draw  = from.has_draw;
        s->noise     = from.noise;
        s->changes   = from.changes;
        s->rules     = from.rules;
        s->grammar_skips_thoughts = from.grammar_skips_thoughts;
        // A copy inherits the remaining time of its grammar: otherwise each copy of a slow one would get the full time
        // again.
        s->grammar_seconds_left = from.grammar_seconds_left;
        s->grammar_prefill = from.grammar_prefill;
        s->hidden          = from.hidden;
        if (from.shadow) {
            s->shadow       = { copy_grammar(*from.shadow), llama_grammar_free_impl };
            s->shadow_begin = { copy_grammar(*from.shadow_begin), llama_grammar_free_impl };
        }
        s->is_lazy     = from.is_lazy;
        s->n_unmatched = from.n_unmatched;
        s->thoughts       = from.thoughts;
        s->thoughts_begin = from.thoughts_begin;
        if (from.waiting) {
            s->waiting       = { copy_grammar(*from.waiting), llama_grammar_free_impl };
            s->waiting_begin = { copy_grammar(*from.waiting_begin), llama_grammar_free_impl };
        }
        s->chain     = llama_sampler_clone(from.chain);
        s->grammar   = from.grammar != nullptr ? llama_sampler_clone(from.grammar) : nullptr;
        *out = s.release();
    });
}

int llama_spec_sampler_reset(llama_spec_sampler * sampler) {
    return guarded([&] {
        auto & s = open_sampler(sampler);
        in_use lock(s.busy, "the sampler");
        llama_sampler_reset(s.chain);
        s.rules.reset();
        s.changes.reset();
        s.noise.place = 0;
        s.n_unmatched = 0;
        s.thoughts    = s.thoughts_begin;
        s.grammar_seconds_left = GRAMMAR_BOUNDS.seconds;
        if (s.grammar != nullptr) {
            within(GRAMMAR_BOUNDS, [&] {
                llama_sampler_reset(s.grammar);
                if (s.shadow) {
                    s.shadow = { copy_grammar(*s.shadow_begin), llama_grammar_free_impl };
                }
                if (s.waiting) {
                    s.waiting = { copy_grammar(*s.waiting_begin), llama_grammar_free_impl };
                }
                show_prefill(s);
            });
        }
    });
}
