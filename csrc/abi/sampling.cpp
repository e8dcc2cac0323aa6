// Draws tokens with a sampler chain.

#include "abi/sampler.h"
#include "hooks/held_logits.h"

#include "common.h"
#include "llama-grammar.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <functional>
#include <limits>
#include <string>

using namespace llama_spec;

namespace {

// ---- the k likeliest tokens of a row, without a list of the whole vocabulary

constexpr int32_t BLOCK = 64;
constexpr float   LOWEST = -std::numeric_limits<float>::infinity();

// The largest logit of each block; false if any is NaN. The registers' width is chosen at run time.
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
bool block_maxima(const float * logits, int32_t n_blocks, float * maxima) {
    typedef float lanes __attribute__((vector_size(32)));
    typedef int32_t flags __attribute__((vector_size(32)));
    constexpr int32_t N_LANES = 8, N_REGISTERS = BLOCK / N_LANES;
    flags is_nan = {};
    for (int32_t block = 0; block < n_blocks; ++block) {
        lanes x[N_REGISTERS];
        std::memcpy(x, logits + block * BLOCK, sizeof(x));
        for (const lanes & one : x) {
            is_nan |= one != one;
        }
        for (int half = N_REGISTERS / 2; half > 0; half /= 2) {
            for (int i = 0; i < half; ++i) {
                x[i] = x[i + half] > x[i] ? x[i + half] : x[i];
            }
        }
        float most = LOWEST;
        for (int i = 0; i < N_LANES; ++i) {
            most = x[0][i] > most ? x[0][i] : most;
        }
        maxima[block] = most;
    }
    bool any = false;
    for (int i = 0; i < N_LANES; ++i) {
        any = any || is_nan[i] != 0;
    }
    return !any;
}

// Like block_maxima(), for the remaining logits, which fill no block.
bool last_maximum(const float * logits, int32_t n, float & most) {
    most = LOWEST;
    for (int32_t i = 0; i < n; ++i) {
        if (logits[i] != logits[i]) {
            return false;
        }
        most = std::max(most, logits[i]);
    }
    return true;
}

// Writes the k largest logits in descending order; `room` is scratch memory. Returns false, with `out` unspecified, if
// the engine has to sort instead. That is the case if two of them are equal (the engine's sort decides their order), if
// some are NaN, if fewer than k are above minus infinity, or if k is so large that a full list is as fast.
bool top_logits(const float * logits, int32_t n_vocab, int32_t k, std::vector<float> & room, std::vector<llama_token_data> & out) {
    const int32_t n_whole = n_vocab / BLOCK, n_blocks = (n_vocab + BLOCK - 1) / BLOCK;
    if (k <= 0 || k > n_blocks / 2) {
        return false;
    }
    room.resize(2 * (size_t) n_blocks);
    float * maxima = room.data(), * sorted = maxima + n_blocks;
    if (!block_maxima(logits, n_whole, maxima) ||
            (n_whole < n_blocks && !last_maximum(logits + n_whole * BLOCK, n_vocab - n_whole * BLOCK, maxima[n_whole]))) {
        return false;
    }
    // At least k blocks have a maximum of `least` or more, so none of the k largest logits is smaller.
    std::copy(maxima, sorted, sorted);
    std::nth_element(sorted, sorted + (k - 1), sorted + n_blocks, std::greater<float>());
    const float least = sorted[k - 1];
    if (least == LOWEST) {
        return false;
    }
    const size_t most = 8 * (size_t) k + BLOCK;     // more means many equal logits, or a sorted row
    out.clear();
    for (int32_t block = 0; block < n_blocks; ++block) {
        if (maxima[block] < least) {
            continue;
        }
        for (int32_t id = block * BLOCK; id < std::min((block + 1) * BLOCK, n_vocab); ++id) {
            if (logits[id] >= least) {
                out.push_back({ id, logits[id], 0.0f });
            }
        }
        if (out.size() > most) {
            return false;
        }
    }
    const auto is_more = [](const llama_token_data & a, const llama_token_data & b) { return a.logit > b.logit; };
    const size_t n_sorted = std::min(out.size(), (size_t) k + 1);
    std::partial_sort(out.begin(), out.begin() + (std::ptrdiff_t) n_sorted, out.end(), is_more);
    for (size_t i = 1; i < n_sorted; ++i) {
        if (out[i].logit == out[i - 1].logit) {
            return false;
        }
    }
    out.resize((size_t) k);
    return true;
}

// ---- noise

// The finalizer of SplitMix64 (Steele, Lea and Flood 2014): every bit of the result depends on every bit of x.
uint64_t mixed(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

// Gumbel noise; place: the number of earlier tokens in the answer.
double shared_noise(uint32_t seed, uint64_t place, int32_t id) {
    const uint64_t bits = mixed(mixed(mixed(seed) ^ place) ^ (uint32_t) id);
    // Strictly between 0 and 1, so that both logarithms are finite.
    const double u = ((double) (bits >> 11) + 0.5) * 0x1p-53;
    return -std::log(-std::log(u));
}

// ---- choices

void fill(std::vector<llama_token_data> & out, const float * logits, int32_t n_vocab) {
    out.resize((size_t) n_vocab);
    bool any_nan = false;
    for (int32_t id = 0; id < n_vocab; ++id) {
        any_nan = any_nan | (logits[id] != logits[id]);
        out[(size_t) id] = { id, logits[id], 0.0f };
    }
    // Sorting candidates that include NaN is undefined: NaN has no order.
    if (any_nan) {
        fail(LLAMA_SPEC_ENGINE, "some logits are NaN: the weights or the computation are broken; download the model again");
    }
}

// Returns a negative number if a logit is NaN or none is finite: then no maximum is meaningful. A round of 8 drafted
// tokens reads 9 rows of the vocabulary, so the code uses the widest registers of the processor at run time.
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
int32_t argmax_or_negative(const float * logits, int32_t n_vocab) {
    // Uses the vector extension of GCC and Clang, since they do not vectorise a scalar maximum here. Vectors are as
    // wide as AVX2 registers: without AVX-512, GCC compares wider ones element by element.
    typedef float lanes __attribute__((vector_size(32)));
    typedef int32_t flags __attribute__((vector_size(32)));
    constexpr int32_t N_LANES = 8, N_REGISTERS = 8, BLOCK = 4096;
    float   best       = LOWEST;
    int32_t best_block = -1;
    flags   is_nan     = {};
    bool    any_nan    = false;
    for (int32_t start = 0; start < n_vocab; start += BLOCK) {
        const int32_t end = std::min(start + BLOCK, n_vocab);
        lanes found[N_REGISTERS];
        for (lanes & one : found) {
            for (int k = 0; k < N_LANES; ++k) {
                one[k] = LOWEST;
            }
        }
        int32_t i = start;
        for (; i + N_REGISTERS * N_LANES <= end; i += N_REGISTERS * N_LANES) {
            for (int j = 0; j < N_REGISTERS; ++j) {
                lanes a;
                std::memcpy(&a, logits + i + j * N_LANES, sizeof(a));
                is_nan |= a != a;
                found[j] = a > found[j] ? a : found[j];
            }
        }
        for (int half = N_REGISTERS / 2; half > 0; half /= 2) {
            for (int j = 0; j < half; ++j) {
                found[j] = found[j + half] > found[j] ? found[j + half] : found[j];
            }
        }
        float block = LOWEST;
        for (int k = 0; k < N_LANES; ++k) {
            block = std::max(block, found[0][k]);
        }
        for (; i < end; ++i) {
            any_nan = any_nan | (logits[i] != logits[i]);
            block = logits[i] > block ? logits[i] : block;
        }
        if (block > best) {
            best       = block;
            best_block = start;
        }
    }
    for (int k = 0; k < N_LANES; ++k) {
        any_nan = any_nan | (is_nan[k] != 0);
    }
    if (any_nan) {
        return -1;
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
        fail(LLAMA_SPEC_ENGINE, "some logits are NaN, or all are minus infinity: the weights or the computation are broken; download the model again");
    }
    return best;
}

int32_t selected(const llama_token_data_array & candidates) {
    if (candidates.selected < 0 || (size_t) candidates.selected >= candidates.size) {
        fail(LLAMA_SPEC_ENGINE, "the sampler chain selected no token; the logits may be NaN, or the grammar allows nothing more");
    }
    const llama_token_data & chosen = candidates.data[candidates.selected];
    if (chosen.logit == LOWEST) {
        fail(LLAMA_SPEC_ENGINE, "no token may follow: `logit_bias`, the `grammar` or the logits forbid all of them; allow one");
    }
    if (std::isnan(chosen.logit) || std::isnan(chosen.p)) {
        fail(LLAMA_SPEC_ENGINE, "the logits became NaN or infinite: the weights or the computation are broken; download the model again");
    }
    return chosen.id;
}

bool is_hidden(const llama_spec_sampler & s, int32_t id) {
    return s.hidden && (size_t) id < s.hidden->size() && (*s.hidden)[(size_t) id];
}

bool is_allowed(llama_spec_sampler & s, int32_t id) {
    if (is_hidden(s, id)) {
        return false;
    }
    llama_token_data       one   = { id, 1.0f, 0.0f };
    llama_token_data_array alone = { &one, 1, -1, false };
    llama_sampler_apply(s.grammar, &alone);
    return one.logit != LOWEST;
}

// The first of s.row's likeliest tokens that the grammar allows; negative if the tries find none.
int32_t likeliest_allowed(llama_spec_sampler & s, int32_t n_vocab, int32_t refused) {
    constexpr int N_TRIES = 16;     // a try takes some microseconds, a mask at least some hundred
    for (int i = 0; i < N_TRIES && refused >= 0; ++i) {
        s.row[(size_t) refused] = LOWEST;
        refused = argmax_or_negative(s.row.data(), n_vocab);
        if (refused >= 0 && is_allowed(s, refused)) {
            return refused;
        }
    }
    return -1;
}

void mask(llama_spec_sampler & s, llama_token_data_array & all) {
    if (s.hidden && !s.hidden->empty()) {
        for (auto & one : s.candidates) {
            one.logit = is_hidden(s, one.id) ? LOWEST : one.logit;
        }
    }
    if (s.shadow) {
        auto & model = *s.model;
        std::call_once(model.chars_made, [&] { model.chars = std::make_unique<token_chars>(model.vocab()); });
        if (model.chars->mask(*s.shadow, s.candidates)) {
            return;
        }
    }
    llama_sampler_apply(s.grammar, &all);
}

// Sorted ids, those that answer_rules forbid or none.
using token_ids = std::vector<int32_t>;

bool holds(const token_ids & sorted, int32_t id) {
    return std::binary_search(sorted.begin(), sorted.end(), id);
}

// Fills the candidates, and sets what is forbidden to minus infinity.
void fill_allowed(llama_spec_sampler & s, const float * logits, int32_t n_vocab, const token_ids & forbidden) {
    fill(s.candidates, logits, n_vocab);
    for (const int32_t id : forbidden) {
        s.candidates[(size_t) id].logit = LOWEST;
    }
}

// Removes candidates that the rules forbid, before the chain runs. Samplers that use each candidate's surprise would
// see an infinite one. Returns false if no candidate is left.
bool drop_impossible(llama_spec_sampler & s, const token_ids & forbidden) {
    if (!forbidden.empty()) {
        const auto is_impossible = [](const llama_token_data & one) { return one.logit == LOWEST; };
        s.candidates.erase(std::remove_if(s.candidates.begin(), s.candidates.end(), is_impossible), s.candidates.end());
    }
    return !s.candidates.empty();
}

// Candidates are sorted by id; some ids may be missing.
float * logit_of(std::vector<llama_token_data> & candidates, int32_t id) {
    if ((size_t) id < candidates.size() && candidates[(size_t) id].id == id) {
        return &candidates[(size_t) id].logit;
    }
    const auto at = std::lower_bound(candidates.begin(), candidates.end(), id,
            [](const llama_token_data & one, int32_t other) { return one.id < other; });
    return at != candidates.end() && at->id == id ? &at->logit : nullptr;
}

int32_t draw_among(llama_spec_sampler & s, bool is_sorted) {
    llama_token_data_array all = { s.candidates.data(), s.candidates.size(), -1, is_sorted };
    llama_sampler_apply(s.chain, &all);
    s.n_left = all.size;
    if (s.noise.is_on) {
        all.selected = s.noise.choose(all.data, all.size);
    }
    return selected(all);
}

int32_t draw_from(llama_spec_sampler & s) {
    s.changes.apply([&](int32_t id) { return logit_of(s.candidates, id); });
    return draw_among(s, false);
}

// Fills s.row with the logits, after the rules and the request's changes.
void fill_row(llama_spec_sampler & s, const float * logits, int32_t n_vocab, const token_ids & forbidden) {
    s.row.assign(logits, logits + n_vocab);
    for (const int32_t id : forbidden) {
        s.row[(size_t) id] = LOWEST;
    }
    s.changes.apply([&](int32_t id) { return &s.row[(size_t) id]; });
}

// Draws among only the likeliest tokens. Returns a negative number if that is impossible: the caller then uses all
// tokens, and reports any error in them.
int32_t draw_top(llama_spec_sampler & s, const float * logits, int32_t n_vocab, const token_ids & forbidden) {
    if (s.n_top == 0) {
        return -1;
    }
    const bool is_changed = s.changes.any() || !forbidden.empty();
    if (is_changed) {
        fill_row(s, logits, n_vocab, forbidden);
    }
    if (!top_logits(is_changed ? s.row.data() : logits, n_vocab, s.n_top, s.room, s.candidates)) {
        return -1;
    }
    return draw_among(s, true);
}

int32_t draw_greedy(llama_spec_sampler & s, const float * logits, int32_t n_vocab, bool has_grammar, const token_ids & forbidden) {
    const bool is_changed = s.changes.any();
    int32_t id = is_changed ? -1 : argmax(logits, n_vocab);
    if (id >= 0 && !holds(forbidden, id) && (!has_grammar || is_allowed(s, id))) {
        return id;
    }
    fill_row(s, logits, n_vocab, forbidden);
    if (is_changed || !forbidden.empty()) {
        id = argmax_or_negative(s.row.data(), n_vocab);
    }
    if (id < 0 || !has_grammar || is_allowed(s, id)) {
        return id;
    }
    return likeliest_allowed(s, n_vocab, id);
}

int32_t nothing_left(bool may_be_last) {
    if (!may_be_last) {
        fail(LLAMA_SPEC_ENGINE, "no token may follow: `logit_bias`, the `grammar` or the logits forbid all of them; allow one");
    }
    return -1;
}

// Returns a negative number if nothing may follow except a forbidden end token.
int32_t choose(llama_spec_sampler & s, const float * logits, int32_t n_vocab, const token_ids & forbidden) {
    // Masking the whole vocabulary with the grammar is slow, so the chain chooses first. Only if the grammar refuses
    // that choice is the vocabulary masked and the choice repeated.
    const bool has_grammar = s.grammar != nullptr && !skips_grammar(s);
    const bool may_be_last = !forbidden.empty();
    if (s.is_argmax) {
        const int32_t id = draw_greedy(s, logits, n_vocab, has_grammar, forbidden);
        if (id >= 0) {
            return id;
        }
        if (!has_grammar && may_be_last && !s.changes.any()) {
            return -1;
        }
    } else {
        int32_t id = draw_top(s, logits, n_vocab, forbidden);
        if (id < 0) {
            fill_allowed(s, logits, n_vocab, forbidden);
            if (!drop_impossible(s, forbidden)) {
                return nothing_left(may_be_last);
            }
            id = draw_from(s);
        }
        if (!has_grammar || is_allowed(s, id)) {
            return id;
        }
    }
    fill_allowed(s, logits, n_vocab, forbidden);
    if (has_grammar) {
        const auto is_possible = [](const llama_token_data & one) { return one.logit != LOWEST; };
        const auto any_left = [&] { return std::any_of(s.candidates.begin(), s.candidates.end(), is_possible); };
        const bool was_left = any_left();    // otherwise the grammar is not the reason that nothing is left
        llama_token_data_array all = { s.candidates.data(), s.candidates.size(), -1, false };
        mask(s, all);
        if (was_left && !any_left() && forbidden.empty()) {
            fail(LLAMA_SPEC_ARGUMENT, "no token may follow: the `grammar` allows none of this model here. It asks for a character "
                    "that no token has, for one of no characters, such as [z-a], or for the end, and the model has no token for it");
        }
    }
    return drop_impossible(s, forbidden) ? draw_from(s) : nothing_left(may_be_last);
}

int32_t draw(llama_spec_sampler & s, const float * logits, int32_t n_vocab) {
    const int32_t forced = s.rules.forced();
    if (forced >= 0) {
        if (s.grammar != nullptr && !skips_grammar(s) && !is_allowed(s, forced)) {
            fail(LLAMA_SPEC_ENGINE, "the grammar allows no end of the thought, whose budget is used up");
        }
        return forced;
    }
    const int32_t id = choose(s, logits, n_vocab, s.rules.forbidden());
    // A finished grammar allows only the end: then the request's rules give way.
    return id >= 0 ? id : choose(s, logits, n_vocab, {});
}

const float * logits_at(const context_state & state, const llama_spec_sampler & s, int32_t row) {
    if (row < 0 || row >= state.n_rows) {
        fail(LLAMA_SPEC_ARGUMENT, "row " + std::to_string(row) + " is outside the last batch, which had " +
                std::to_string(state.n_rows) + " tokens");
    }
    require(state.model->n_vocab() == s.model->n_vocab(), "the sampler was made for a model with another vocabulary; make one for this");
    const float * logits = state.has_logits ? llama_get_logits_ith(state.ctx, row) : nullptr;
    if (logits == nullptr) {
        fail(LLAMA_SPEC_ARGUMENT, "no logits were asked for at row " + std::to_string(row) + " of the last batch; add its token with an output");
    }
    return logits;
}

int32_t draw_at(llama_spec_sampler & s, context_state & state, int32_t row) {
    const bool has_row = state.has_logits && row >= 0 && row < state.n_rows && state.model->n_vocab() == s.model->n_vocab();
    if (s.is_argmax && !s.changes.any() && has_row) {
        // The device chooses, so that the logits need not be copied.
        const int32_t id = llama_spec_likeliest(state.ctx, row);
        const bool has_grammar = s.grammar != nullptr && !skips_grammar(s);
        if (id >= 0 && s.rules.forced() < 0 && !holds(s.rules.forbidden(), id) && (!has_grammar || is_allowed(s, id))) {
            return id;
        }
    }
    return draw(s, logits_at(state, s, row), s.model->n_vocab());
}

// Runs f within the remaining time of s's grammar. Each token returns some time, up to the initial amount.
template <typename F> void within_grammar(llama_spec_sampler & s, F && f, const std::atomic<bool> * cancelled = nullptr) {
    work_bounds bounds = GRAMMAR_BOUNDS;
    bounds.seconds = s.grammar_seconds_left;
    const double begin = s.grammar != nullptr ? own_seconds() : 0.0;    // without a grammar no time is counted
    within(bounds, f, cancelled);
    if (s.grammar != nullptr) {
        const double left = s.grammar_seconds_left + GRAMMAR_SECONDS_EACH - (own_seconds() - begin);
        s.grammar_seconds_left = std::min(left, GRAMMAR_BOUNDS.seconds);
    }
}

void accept(llama_spec_sampler & s, int32_t id, bool is_generated) {
    llama_sampler_accept(s.chain, id);
    s.changes.accept(id);
    const bool is_skipped = skips_grammar(s);
    if (is_generated) {
        s.rules.accept(id);
        ++s.noise.place;
    }
    if (!is_generated || is_skipped || s.grammar == nullptr) {
        return;
    }
    if (!s.is_lazy && !s.waiting) {
        llama_sampler_accept(s.grammar, id);
        if (s.shadow) {
            llama_grammar_accept_impl(*s.shadow, id);
        }
        return;
    }
    std::vector<int32_t> shown = { id };
    const bool watches = s.waiting && s.waiting->awaiting_trigger;
    if (watches) {
        shown = s.thoughts.shown(id, common_token_to_piece(s.model->vocab(), id, true));
    }
    for (const int32_t one : shown) {
        const auto show = [&] {
            llama_sampler_accept(s.grammar, one);
            if (watches) {
                llama_grammar_accept_impl(*s.waiting, one);
            }
        };
        if (!s.is_lazy) {
            show();
            continue;
        }
        // The trigger matcher reads everything shown so far, and recurses for each character.
        s.n_unmatched += (size_t) std::abs(llama_token_to_piece(s.model->vocab(), one, nullptr, 0, 0, true));
        with_deep_stack(trigger_stack(s.n_unmatched), show);
    }
}

// ---- text that the grammar forces: it can be drafted without a model

// The character that every continuation begins with; 0 if there are several, or if the text may end.
uint32_t forced_char(llama_grammar & grammar) {
    const llama_grammar_stacks & stacks = llama_grammar_get_stacks(&grammar);
    uint32_t found = 0;
    for (const auto & stack : stacks) {
        if (stack.empty() || stack.back()->type != LLAMA_GRETYPE_CHAR) {
            return 0;
        }
        const llama_grammar_element * next = stack.back() + 1;
        if (next->type == LLAMA_GRETYPE_CHAR_ALT || next->type == LLAMA_GRETYPE_CHAR_RNG_UPPER) {
            return 0;
        }
        if (found != 0 && found != stack.back()->value) {
            return 0;
        }
        found = stack.back()->value;
    }
    return found;
}

void append_utf8(std::string & out, uint32_t c) {
    if (c < 0x80) {
        out += (char) c;
    } else if (c < 0x800) {
        out += (char) (0xC0 | (c >> 6));
        out += (char) (0x80 | (c & 0x3F));
    } else if (c < 0x10000) {
        out += (char) (0xE0 | (c >> 12));
        out += (char) (0x80 | ((c >> 6) & 0x3F));
        out += (char) (0x80 | (c & 0x3F));
    } else {
        out += (char) (0xF0 | (c >> 18));
        out += (char) (0x80 | ((c >> 12) & 0x3F));
        out += (char) (0x80 | ((c >> 6) & 0x3F));
        out += (char) (0x80 | (c & 0x3F));
    }
}

} // namespace

int64_t noise_draw::choose(const llama_token_data * candidates, size_t n) const {
    int64_t best = -1;
    double  most = -std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < n; ++i) {
        const double logit = candidates[i].logit;
        if (std::isnan(logit)) {
            return (int64_t) i;
        }
        if (logit == -std::numeric_limits<double>::infinity()) {
            continue;
        }
        const double score = logit + shared_noise(seed, place, candidates[i].id);
        if (best < 0 || score > most || (score == most && candidates[i].id < candidates[best].id)) {
            best = (int64_t) i;
            most = score;
        }
    }
    return best;
}

int llama_spec_sample(llama_spec_sampler * sampler, llama_spec_context * ctx, int32_t i, int32_t * id) {
    return guarded_call(sampler, [&](llama_spec_sampler & s) {
        context_call call(ctx);
        within_grammar(s, [&] { *id = draw_at(s, call.state, i); }, &call.state.cancelled);
    });
}

int llama_spec_sample_chain(llama_spec_sampler * sampler, llama_spec_context * ctx, int32_t row, const int32_t * draft,
                            int32_t n_draft, int32_t * out, int32_t * n_out) {
    *n_out = 0;
    return guarded_call(sampler, [&](llama_spec_sampler & s) {
        context_call call(ctx);
        for (int32_t k = 0; k <= n_draft; ++k) {
            int32_t id = -1;
            within_grammar(s, [&] {
                id = draw_at(s, call.state, row + k);
                accept(s, id, true);
            }, &call.state.cancelled);
            out[(*n_out)++] = id;
            if (k == n_draft || id != draft[k] || llama_vocab_is_eog(s.model->vocab(), id)) {
                break;
            }
        }
    });
}

int llama_spec_candidates(llama_spec_sampler * sampler, llama_spec_context * ctx, int32_t i, int32_t * ids, float * logits,
                          int32_t * n) {
    return guarded_call(sampler, [&](llama_spec_sampler & s) {
        context_call call(ctx);
        require(s.has_draw, "greedy sampling, mirostat and grammars have no distribution that is known before the choice");
        s.n_left = 0;
        const int32_t id = draw(s, logits_at(call.state, s, i), s.model->n_vocab());
        if (s.n_left == 0) {
            s.candidates.assign(1, { id, 0.0f, 1.0f }); // no chain ran: a rule forced the end of the thought
            s.n_left = 1;
        }
        for (size_t k = 0; k < s.n_left; ++k) {
            ids[k]    = s.candidates[k].id;
            logits[k] = s.candidates[k].logit;
        }
        *n = (int32_t) s.n_left;
    });
}

int llama_spec_sample_row(llama_spec_sampler * sampler, const float * logits, int32_t n_vocab, int32_t * id) {
    return guarded_call(sampler, [&](llama_spec_sampler & s) {
        if (n_vocab != s.model->n_vocab()) {
            fail(LLAMA_SPEC_ARGUMENT, "the row has " + std::to_string(n_vocab) + " numbers, and the vocabulary " +
                    std::to_string(s.model->n_vocab()) + " tokens; give a number for each");
        }
        within_grammar(s, [&] { *id = draw(s, logits, n_vocab); });
    });
}

int64_t llama_spec_sampler_place(llama_spec_sampler * sampler) {
    return (int64_t) sampler->noise.place;
}

void llama_spec_shared_noise(uint32_t seed, int64_t place, const int32_t * ids, int32_t n, double * out) {
    for (int32_t i = 0; i < n; ++i) {
        out[i] = shared_noise(seed, (uint64_t) place, ids[i]);
    }
}

int llama_spec_sampler_accept(llama_spec_sampler * sampler, int32_t id, bool is_generated) {
    return guarded_call(sampler, [&](llama_spec_sampler & s) {
        if (id < 0 || id >= s.model->n_vocab()) {
            fail(LLAMA_SPEC_ARGUMENT, "id " + std::to_string(id) + " is outside 0 .. " + std::to_string(s.model->n_vocab() - 1));
        }
        within_grammar(s, [&] { accept(s, id, is_generated); });
    });
}

int32_t llama_spec_sampler_forced(llama_spec_sampler * sampler, char * buf, int32_t size) {
    int32_t n = 0;
    const int rc = guarded_call(sampler, [&](llama_spec_sampler & s) {
        // After a token that ends within a character nothing is forced.
        if (!s.shadow || skips_grammar(s) || s.shadow->partial_utf8.n_remain != 0 || forced_char(*s.shadow) == 0) {
            return;
        }
        const grammar_ptr walk(copy_grammar(*s.shadow), llama_grammar_free_impl);
        std::string text;
        for (uint32_t c = forced_char(*walk); c != 0; c = forced_char(*walk)) {
            std::string one;
            append_utf8(one, c);
            if (text.size() + one.size() > (size_t) size) {
                break;
            }
            text += one;
            llama_grammar_accept(walk.get(), c);
        }
        std::copy(text.begin(), text.end(), buf);
        n = (int32_t) text.size();
    });
    return rc == LLAMA_SPEC_OK ? n : rc;
}
