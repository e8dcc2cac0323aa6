// Sampler chains. The order of the samplers is the one that llama.cpp's own programs use.

#include "grammar_check.h"
#include "handles.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

using namespace llama_spec;

namespace {

void add(llama_sampler * chain, llama_sampler * sampler, const char * what) {
    if (sampler == nullptr) {
        fail(LLAMA_SPEC_ARGUMENT, std::string("the engine refused the parameters of ") + what);
    }
    llama_sampler_chain_add(chain, sampler);
}

bool has_penalties(const llama_spec_sampler_params & p) {
    return p.penalty_last_n != 0 && (p.repeat_penalty != 1.0f || p.frequency_penalty != 0.0f || p.presence_penalty != 0.0f);
}

void check_params(const llama_spec_sampler_params & p, int32_t n_vocab) {
    for (float value : { p.temperature, p.top_p, p.min_p, p.typical_p, p.top_n_sigma, p.xtc_probability, p.xtc_threshold,
                         p.repeat_penalty, p.frequency_penalty, p.presence_penalty, p.dry_multiplier, p.dry_base,
                         p.mirostat_tau, p.mirostat_eta }) {
        require(std::isfinite(value), "a sampling parameter is not a finite number");
    }
    require(p.repeat_penalty > 0.0f, "repeat_penalty must be above 0");
    require(p.mirostat >= 0 && p.mirostat <= 2, "mirostat must be 0, 1 or 2");
    for (int32_t i = 0; i < p.n_bias; ++i) {
        if (p.bias_ids[i] < 0 || p.bias_ids[i] >= n_vocab) {
            fail(LLAMA_SPEC_ARGUMENT, "logit_bias names id " + std::to_string(p.bias_ids[i]) + ", outside 0 .. " +
                    std::to_string(n_vocab - 1));
        }
    }
}

// How many past tokens a penalty sees; -1 for the context's. The engine allocates that many at once.
int32_t window(int32_t last_n, const model_state & model) {
    constexpr int32_t MAX_WINDOW = 1 << 22;
    return std::min(last_n < 0 ? std::max(llama_model_n_ctx_train(model.model), 0) : last_n, MAX_WINDOW);
}

// Everything that reshapes the logits before the ones that cut the candidates.
bool add_biases(llama_sampler * chain, const llama_spec_sampler_params & p, const model_state & model) {
    bool any = false;
    if (p.n_bias > 0) {
        std::vector<llama_logit_bias> bias((size_t) p.n_bias);
        for (int32_t i = 0; i < p.n_bias; ++i) {
            bias[(size_t) i] = { p.bias_ids[i], p.bias[i] };
        }
        add(chain, llama_sampler_init_logit_bias(model.n_vocab(), p.n_bias, bias.data()), "logit_bias");
        any = true;
    }
    if (has_penalties(p)) {
        const int32_t last_n = window(p.penalty_last_n, model);
        add(chain, llama_sampler_init_penalties(model.n_vocab(), last_n, p.repeat_penalty, p.frequency_penalty,
                p.presence_penalty), "the penalties");
        any = true;
    }
    if (p.dry_multiplier != 0.0f) {
        add(chain, llama_sampler_init_dry(model.vocab(), p.dry_multiplier, p.dry_base, p.dry_allowed_length,
                window(p.dry_penalty_last_n, model), p.dry_breakers, (size_t) p.n_dry_breakers), "DRY");
        any = true;
    }
    return any;
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
    add(chain, llama_sampler_init_dist(p.seed), "the draw");
}

llama_sampler * make_grammar(const llama_spec_sampler_params & p, const model_state & model) {
    const char * root = p.grammar_root != nullptr ? p.grammar_root : "root";
    check_grammar(model.vocab(), p.grammar, root);
    llama_sampler * grammar = p.n_grammar_triggers > 0
        ? llama_sampler_init_grammar_lazy_patterns(model.vocab(), p.grammar, root, p.grammar_triggers,
                (size_t) p.n_grammar_triggers, nullptr, 0)
        : llama_sampler_init_grammar(model.vocab(), p.grammar, root);
    if (grammar == nullptr) {
        fail(LLAMA_SPEC_ARGUMENT, std::string("the grammar could not be parsed (its root is '") + root + "')");
    }
    return grammar;
}

void fill(std::vector<llama_token_data> & out, const float * logits, int32_t n_vocab) {
    out.resize((size_t) n_vocab);
    bool any_nan = false;
    for (int32_t id = 0; id < n_vocab; ++id) {
        any_nan = any_nan | (logits[id] != logits[id]);
        out[(size_t) id] = { id, logits[id], 0.0f };
    }
    // Sorting candidates of which some are NaN is undefined: the order would contradict itself.
    if (any_nan) {
        fail(LLAMA_SPEC_ENGINE, "some logits are NaN: the model's weights or the computation are broken");
    }
}

// A round of 8 drafted tokens reads 9 rows of the vocabulary: wide registers are chosen at run time.
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
int32_t argmax_or_negative(const float * logits, int32_t n_vocab) {
    // The vector extension of GCC and Clang: a loop over scalars is not turned into vector maxima here.
    typedef float lanes __attribute__((vector_size(64)));
    constexpr int32_t N_LANES = 16, BLOCK = 4096;
    const float lowest = -std::numeric_limits<float>::infinity();

    float   best       = lowest;
    int32_t best_block = -1;
    for (int32_t start = 0; start < n_vocab; start += BLOCK) {
        const int32_t end = std::min(start + BLOCK, n_vocab);
        lanes top[2];
        for (int k = 0; k < N_LANES; ++k) {
            top[0][k] = top[1][k] = lowest;
        }
        int32_t i = start;
        for (; i + 2 * N_LANES <= end; i += 2 * N_LANES) {
            lanes a, b;
            std::memcpy(&a, logits + i, sizeof(a));
            std::memcpy(&b, logits + i + N_LANES, sizeof(b));
            top[0] = a > top[0] ? a : top[0];
            top[1] = b > top[1] ? b : top[1];
        }
        float block = lowest;
        for (int k = 0; k < N_LANES; ++k) {
            block = std::max(block, std::max(top[0][k], top[1][k]));
        }
        for (; i < end; ++i) {
            block = logits[i] > block ? logits[i] : block;
        }
        if (block > best) {
            best       = block;
            best_block = start;
        }
    }
    for (int32_t i = std::max(best_block, 0); best_block >= 0 && i < n_vocab; ++i) {
        if (logits[i] == best) {
            return i;
        }
    }
    return -1;
}

int32_t argmax(const float * logits, int32_t n_vocab) {
    const int32_t best = argmax_or_negative(logits, n_vocab);
    if (best < 0) {
        fail(LLAMA_SPEC_ENGINE, "the logits have no largest number (they are NaN): the model's weights or the computation are broken");
    }
    return best;
}

int32_t selected(const llama_token_data_array & candidates) {
    if (candidates.selected < 0 || (size_t) candidates.selected >= candidates.size) {
        fail(LLAMA_SPEC_ENGINE, "the sampler chain selected no token; the logits may be NaN, or the grammar allows nothing more");
    }
    const llama_token_data & chosen = candidates.data[candidates.selected];
    if (chosen.logit == -std::numeric_limits<float>::infinity()) {
        fail(LLAMA_SPEC_ENGINE, "no token may follow: logit_bias, the grammar or the logits forbid all of them");
    }
    if (std::isnan(chosen.logit) || std::isnan(chosen.p)) {
        fail(LLAMA_SPEC_ENGINE, "the logits became NaN or infinite: the model's weights or the computation are broken");
    }
    return chosen.id;
}

int32_t draw(llama_spec_sampler & s, const float * logits, int32_t n_vocab) {
    if (s.is_argmax && s.grammar == nullptr) {
        return argmax(logits, n_vocab);
    }
    fill(s.candidates, logits, n_vocab);
    llama_token_data_array all = { s.candidates.data(), s.candidates.size(), -1, false };
    llama_sampler_apply(s.chain, &all);
    const int32_t id = selected(all);
    if (s.grammar == nullptr) {
        return id;
    }
    // Walking the grammar over the whole vocabulary is slow, so the chain's choice is tried first; only if
    // the grammar forbids it is the vocabulary masked and the choice made again.
    llama_token_data       one   = { id, 1.0f, 0.0f };
    llama_token_data_array alone = { &one, 1, -1, false };
    llama_sampler_apply(s.grammar, &alone);
    if (one.logit != -std::numeric_limits<float>::infinity()) {
        return id;
    }
    fill(s.candidates, logits, n_vocab);
    all = { s.candidates.data(), s.candidates.size(), -1, false };
    llama_sampler_apply(s.grammar, &all);
    llama_sampler_apply(s.chain, &all);
    return selected(all);
}

llama_spec_sampler & checked(llama_spec_sampler * sampler) {
    require(sampler != nullptr && sampler->chain != nullptr, "the sampler is closed");
    return *sampler;
}

} // namespace

void llama_spec_sampler_default_params(llama_spec_sampler_params * out) {
    *out = {};
    out->temperature    = 0.8f;
    out->top_k          = 40;
    out->top_p          = 0.95f;
    out->min_p          = 0.05f;
    out->typical_p      = 1.0f;
    out->top_n_sigma    = -1.0f;
    out->xtc_threshold  = 0.1f;
    out->min_keep       = 1;
    out->penalty_last_n = 64;
    out->repeat_penalty = 1.0f;
    out->dry_base       = 1.75f;
    out->dry_allowed_length = 2;
    out->dry_penalty_last_n = 64;
    out->mirostat_tau   = 5.0f;
    out->mirostat_eta   = 0.1f;
}

int llama_spec_sampler_new(llama_spec_model * model, const llama_spec_sampler_params * params, llama_spec_sampler ** out) {
    return guarded([&] {
        require(model != nullptr && model->state && params != nullptr && out != nullptr, "the model is closed");
        *out = nullptr;
        check_params(*params, model->state->n_vocab());
        auto s = std::make_unique<llama_spec_sampler>();
        s->model = model->state;
        s->chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
        const bool biased = add_biases(s->chain, *params, *s->model);
        add_choice(s->chain, *params, s->model->n_vocab());
        s->is_argmax = !biased && params->temperature <= 0.0f;
        if (params->grammar != nullptr) {
            s->grammar = make_grammar(*params, *s->model);
        }
        *out = s.release();
    });
}

void llama_spec_sampler_free(llama_spec_sampler * sampler) {
    guarded([&] { delete sampler; });
}

int llama_spec_sampler_clone(llama_spec_sampler * sampler, llama_spec_sampler ** out) {
    return guarded([&] {
        auto & from = checked(sampler);
        in_use lock(from.busy, "the sampler");
        auto s = std::make_unique<llama_spec_sampler>();
        s->model     = from.model;
        s->is_argmax = from.is_argmax;
        s->chain     = llama_sampler_clone(from.chain);
        s->grammar   = from.grammar != nullptr ? llama_sampler_clone(from.grammar) : nullptr;
        *out = s.release();
    });
}

int llama_spec_sampler_reset(llama_spec_sampler * sampler) {
    return guarded([&] {
        auto & s = checked(sampler);
        in_use lock(s.busy, "the sampler");
        llama_sampler_reset(s.chain);
        if (s.grammar != nullptr) {
            llama_sampler_reset(s.grammar);
        }
    });
}

int llama_spec_sample(llama_spec_sampler * sampler, llama_spec_context * ctx, int32_t i, int32_t * id) {
    return guarded([&] {
        auto & s = checked(sampler);
        in_use lock(s.busy, "the sampler");
        context_call call(ctx);
        if (i < 0 || i >= call.state.n_rows) {
            fail(LLAMA_SPEC_ARGUMENT, "row " + std::to_string(i) + " is outside the last batch");
        }
        const int32_t n_vocab = call.state.model->n_vocab();
        require(n_vocab == s.model->n_vocab(), "the sampler was made for a model with another vocabulary");
        const float * logits = call.state.has_logits ? llama_get_logits_ith(call.state.ctx, i) : nullptr;
        if (logits == nullptr) {
            fail(LLAMA_SPEC_ARGUMENT, "no logits were asked for at row " + std::to_string(i) + " of the last batch");
        }
        *id = draw(s, logits, n_vocab);
    });
}

int llama_spec_sample_row(llama_spec_sampler * sampler, const float * logits, int32_t n_vocab, int32_t * id) {
    return guarded([&] {
        auto & s = checked(sampler);
        in_use lock(s.busy, "the sampler");
        require(logits != nullptr, "there are no logits");
        if (n_vocab != s.model->n_vocab()) {
            fail(LLAMA_SPEC_ARGUMENT, "the row has " + std::to_string(n_vocab) + " numbers, and the vocabulary " +
                    std::to_string(s.model->n_vocab()) + " tokens");
        }
        *id = draw(s, logits, n_vocab);
    });
}

int llama_spec_sampler_accept(llama_spec_sampler * sampler, int32_t id, bool is_generated) {
    return guarded([&] {
        auto & s = checked(sampler);
        in_use lock(s.busy, "the sampler");
        if (id < 0 || id >= s.model->n_vocab()) {
            fail(LLAMA_SPEC_ARGUMENT, "id " + std::to_string(id) + " is outside 0 .. " + std::to_string(s.model->n_vocab() - 1));
        }
        llama_sampler_accept(s.chain, id);
        if (is_generated && s.grammar != nullptr) {
            llama_sampler_accept(s.grammar, id);
        }
    });
}
