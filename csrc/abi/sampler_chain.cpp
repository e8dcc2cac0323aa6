// Builds sampler chains. The samplers have the order of llama.cpp's own programs.

#include "abi/sampler.h"

#include "llama-grammar.h"
#include "llama-vocab.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>

using namespace llama_spec;

namespace llama_spec {

logit_changes::logit_changes(const llama_spec_sampler_params & p, int32_t penalty_last_n)
    : repeat_(p.repeat_penalty), frequency_(p.frequency_penalty), presence_(p.presence_penalty) {
    for (int32_t i = 0; i < p.n_bias; ++i) {
        biases_.emplace_back(p.bias_ids[i], p.bias[i]);
    }
    if (repeat_ != 1.0f || frequency_ != 0.0f || presence_ != 0.0f) {
        last_n_ = (size_t) std::max(penalty_last_n, 0);
    }
}

// Dividing lowers a positive logit but raises a negative one, so a negative one is multiplied.
void logit_changes::penalise(float & logit, int32_t count) const {
    if (logit <= 0) {
        logit *= repeat_;
    } else {
        logit /= repeat_;
    }
    logit -= float(count) * frequency_ + presence_;
}

void logit_changes::accept(int32_t id) {
    if (last_n_ == 0) {
        return;
    }
    ++counts_[id];
    recent_.push_back(id);
    if (recent_.size() > last_n_) {
        const auto oldest = counts_.find(recent_.front());
        if (--oldest->second == 0) {
            counts_.erase(oldest);
        }
        recent_.pop_front();
    }
}

llama_grammar * copy_grammar(const llama_grammar & from) {
    std::unique_ptr<llama_grammar> to(new llama_grammar {
        from.vocab, from.rules, from.stacks, from.partial_utf8, from.lazy, from.awaiting_trigger, from.trigger_buffer,
        from.trigger_buffer_positions, from.trigger_tokens, from.trigger_patterns,
    });
    std::vector<size_t> order(from.rules.size());
    for (size_t i = 0; i < order.size(); ++i) {
        order[i] = i;
    }
    const std::less<> before;   // compares pointers into different vectors
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return before(from.rules[a].data(), from.rules[b].data()); });
    for (auto & stack : to->stacks) {
        for (auto & place : stack) {
            const auto next = std::upper_bound(order.begin(), order.end(), place,
                    [&](const llama_grammar_element * p, size_t i) { return before(p, from.rules[i].data()); });
            const size_t i = *(next - 1);
            place = to->rules[i].data() + (place - from.rules[i].data());
        }
    }
    return to.release();
}

} // namespace llama_spec

namespace {

grammar_ptr owned(llama_grammar * grammar) {
    if (grammar == nullptr) {
        fail(LLAMA_SPEC_ARGUMENT, "the `grammar` could not be parsed");
    }
    return { grammar, llama_grammar_free_impl };
}

grammar_ptr copy_of(const grammar_ptr & from) {
    return from ? owned(copy_grammar(*from)) : grammar_ptr(nullptr, nullptr);
}

void add(llama_sampler * chain, llama_sampler * sampler, const char * what) {
    if (sampler == nullptr) {
        fail(LLAMA_SPEC_ARGUMENT, std::string("the engine refused the parameters of ") + what);
    }
    llama_sampler_chain_add(chain, sampler);
}

void check_ids(const llama_spec_sampler_params & p, int32_t n_vocab) {
    for (int32_t i = 0; i < p.n_trigger_tokens + p.n_grammar_prefill; ++i) {
        const int32_t id = i < p.n_trigger_tokens ? p.trigger_tokens[i] : p.grammar_prefill[i - p.n_trigger_tokens];
        require(id >= 0 && id < n_vocab, "a token of the triggers or prefill of the `grammar` is outside the vocabulary");
    }
    for (int32_t i = 0; i < p.n_bias; ++i) {
        if (p.bias_ids[i] < 0 || p.bias_ids[i] >= n_vocab) {
            fail(LLAMA_SPEC_ARGUMENT, "`logit_bias` names id " + std::to_string(p.bias_ids[i]) + ", outside 0 .. " +
                    std::to_string(n_vocab - 1));
        }
    }
}

// How many past tokens a penalty reads; -1 means the model's context length. DRY allocates that many at once.
int32_t window(int32_t last_n, const model_state & model) {
    constexpr int32_t MAX_WINDOW = 1 << 22;
    return std::min(last_n < 0 ? std::max(llama_model_n_ctx_train(model.model), 0) : last_n, MAX_WINDOW);
}

// Biases and penalties come before the chain: logit_changes.
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

// A vocabulary has some thousand of these names, and a grammar may have half a million bytes: an index by the first
// characters makes the search fast.
constexpr size_t N_HEAD = 3;

// Control tokens that a grammar does not name. The engine matches their names like text, but a text shows none of them:
// within a string, one would count as characters that no reader sees.
//
// Says for each id whether it is such a token; empty if there are none, or if the grammar refers to tokens by id.
std::vector<bool> hidden_tokens(const llama_vocab * vocab, const char * grammar) {
    if (std::strstr(grammar, "<[") != nullptr || std::strstr(grammar, "!<") != nullptr) {
        return {};
    }
    const int32_t n = llama_vocab_n_tokens(vocab);
    std::vector<bool> hidden((size_t) n, false);
    std::unordered_map<std::string, std::vector<llama_token>> by_head;
    for (llama_token id = 0; id < n; ++id) {
        const std::string & name = vocab->token_to_piece(id);
        if (llama_vocab_is_control(vocab, id) && !llama_vocab_is_eog(vocab, id) && !name.empty()) {
            hidden[(size_t) id] = true;
            by_head[name.substr(0, N_HEAD)].push_back(id);
        }
    }
    if (by_head.empty()) {
        return {};
    }
    const std::string text = grammar;
    for (size_t at = 0; at < text.size(); ++at) {
        for (size_t n_head = 1; n_head <= std::min(N_HEAD, text.size() - at); ++n_head) {
            const auto found = by_head.find(text.substr(at, n_head));
            if (found == by_head.end()) {
                continue;
            }
            for (const llama_token id : found->second) {
                const std::string & name = vocab->token_to_piece(id);
                if (text.compare(at, name.size(), name) == 0) {
                    hidden[(size_t) id] = false;
                }
            }
        }
    }
    return hidden;
}

constexpr const char * ROOT = "root";    // the rule that a grammar starts with

llama_sampler * make_grammar(const llama_spec_sampler_params & p, const model_state & model) {
    check_grammar(model.vocab(), p.grammar, ROOT);
    check_triggers(p.grammar_triggers, p.n_grammar_triggers);
    llama_sampler * grammar = p.n_grammar_triggers > 0 || p.n_trigger_tokens > 0
        ? llama_sampler_init_grammar_lazy_patterns(model.vocab(), p.grammar, ROOT, p.grammar_triggers,
                (size_t) p.n_grammar_triggers, p.trigger_tokens, (size_t) p.n_trigger_tokens)
        : llama_sampler_init_grammar(model.vocab(), p.grammar, ROOT);
    if (grammar == nullptr) {
        fail(LLAMA_SPEC_ARGUMENT, "the `grammar` could not be parsed");
    }
    return grammar;
}

void watch_thoughts(llama_spec_sampler & s, const llama_spec_sampler_params & p) {
    s.thoughts = llama_spec::thoughts(p);
    s.waiting = owned(llama_grammar_init_impl(s.model->vocab(), p.grammar, ROOT, true, p.grammar_triggers,
            (size_t) p.n_grammar_triggers, p.trigger_tokens, (size_t) p.n_trigger_tokens));
}

} // namespace

int llama_spec_sampler_new(llama_spec_model * model, const llama_spec_sampler_params * params, llama_spec_sampler ** out) {
    return guarded([&] {
        model->state->home.check("this model was loaded");
        check_ids(*params, model->state->n_vocab());
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
            std::call_once(state.ends_found, [&] { state.ends = end_ids(state.vocab()); });
            s->rules = answer_rules(*params, state.vocab(), state.ends);
        }
        s->grammar_skips_thoughts = params->grammar_skips_thoughts;
        if (params->grammar != nullptr) {
            within(GRAMMAR_BOUNDS, [&] {
                s->grammar = make_grammar(*params, *s->model);
                if (params->n_grammar_triggers == 0 && params->n_trigger_tokens == 0) {
                    s->shadow = owned(llama_grammar_init_impl(
                            s->model->vocab(), params->grammar, ROOT, false, nullptr, 0, nullptr, 0));
                    s->hidden = std::make_shared<std::vector<bool>>(hidden_tokens(s->model->vocab(), params->grammar));
                    for (int32_t i = 0; i < params->n_grammar_prefill; ++i) {
                        llama_sampler_accept(s->grammar, params->grammar_prefill[i]);
                        llama_grammar_accept_impl(*s->shadow, params->grammar_prefill[i]);
                    }
                }
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
        if (sampler->home.is_here()) {
            delete sampler;
        }
    });
}

int llama_spec_sampler_clone(llama_spec_sampler * sampler, llama_spec_sampler ** out) {
    return guarded_call(sampler, [&](llama_spec_sampler & from) {
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
        s->hidden          = from.hidden;
        s->shadow          = copy_of(from.shadow);
        s->is_lazy     = from.is_lazy;
        s->n_unmatched = from.n_unmatched;
        s->thoughts       = from.thoughts;
        s->waiting        = copy_of(from.waiting);
        s->chain     = llama_sampler_clone(from.chain);
        s->grammar   = from.grammar != nullptr ? llama_sampler_clone(from.grammar) : nullptr;
        *out = s.release();
    });
}
