// Scans of recurrent states (csrc/kernels/scan.h) over random rounds of random shapes. Prints, for each draw, how many
// tokens were computed, how many numbers differ in their bits from those of single tokens without a log, and the
// largest error of a single token's output and state against sums in double precision.
//   scan SEED N_DRAWS [fault]     fault: every rollback is taken one token too short, to see that this is noticed
#include "kernels/scan.h"

#include "ggml-cpu.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace {

using Numbers = std::vector<float>;
std::mt19937 generator;

int64_t draw(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(generator);
}

Numbers normal(int64_t n, float scale = 1.0f) {
    std::normal_distribution<float> of(0.0f, scale);
    Numbers out((size_t) n);
    std::generate(out.begin(), out.end(), [&] { return of(generator); });
    return out;
}

enum Kind { DELTA, WIDE_DELTA, SSM };

struct Shape {
    Kind    kind;
    int64_t n_heads, n_key_heads, n_rows, n_cols, n_log;
    int     n_threads;

    int64_t n_decay() const { return kind == WIDE_DELTA ? n_cols : 1; }
    int64_t n_state() const { return n_heads * n_rows * n_cols; }
    pyllama_spec_scan_shape scan() const { return { n_heads, n_rows, n_cols, n_decay(), n_log }; }
};

struct Token {
    Numbers key, query, value, decay, rate;
};

Token draw_token(const Shape & s) {
    const float scale = 1.0f / std::sqrt((float) s.n_cols);
    Token t = { normal(s.n_key_heads * s.n_cols, scale), normal(s.n_key_heads * s.n_cols), normal(s.n_heads * s.n_rows),
                normal(s.n_heads * s.n_decay(), 0.5f), normal(s.n_heads) };
    for (float & x : t.decay) {
        x = -std::fabs(x);
    }
    if (s.kind != SSM) {
        for (float & x : t.rate) {
            x = 1.0f / (1.0f + std::exp(-x));
        }
    }
    return t;
}

// The decays of Mamba-2 are the model's.
Numbers ssm_decays(const Shape & s) {
    Numbers a = normal(s.n_heads);
    for (float & x : a) {
        x = -std::fabs(x) - 0.05f;
    }
    return a;
}

struct Cache {
    int64_t n_cells;
    Numbers states, log;

    Cache(const Shape & s, int64_t n_cells) : n_cells(n_cells), states((size_t) (s.n_state() * n_cells * (s.n_log > 0 ? 2 : 1))) {
        const auto shape = s.scan();
        log.resize((size_t) (pyllama_spec_cell_log(&shape) * n_cells));
    }
};

ggml_tensor * tensor(ggml_context * ctx, const void * data, ggml_type type, std::vector<int64_t> ne) {
    ggml_tensor * t = ggml_new_tensor(ctx, type, (int) ne.size(), ne.data());
    t->data = const_cast<void *>(data);
    return t;
}

// One batch of all given sequences' tokens; its outputs, sequence by sequence.
Numbers run(const Shape & s, Cache & cache, const Numbers & a, const std::vector<std::vector<Token>> & batch, std::vector<int32_t> ids,
            int32_t head, int32_t fresh) {
    const int64_t n_seqs = (int64_t) batch.size(), n_tokens = (int64_t) batch[0].size();
    Numbers key, query, value, decay, rate;
    for (const auto & tokens : batch) {
        for (const Token & t : tokens) {
            key.insert(key.end(), t.key.begin(), t.key.end());
            query.insert(query.end(), t.query.begin(), t.query.end());
            value.insert(value.end(), t.value.begin(), t.value.end());
            decay.insert(decay.end(), t.decay.begin(), t.decay.end());
            rate.insert(rate.end(), t.rate.begin(), t.rate.end());
        }
    }
    ggml_context * ctx = ggml_init({ size_t(1) << 20, nullptr, true });
    const auto of = [&](const Numbers & x, std::vector<int64_t> ne) { return tensor(ctx, x.data(), GGML_TYPE_F32, std::move(ne)); };
    ggml_tensor * k = of(key, { s.n_cols, s.n_key_heads, n_tokens, n_seqs });
    ggml_tensor * q = of(query, { s.n_cols, s.n_key_heads, n_tokens, n_seqs });
    ggml_tensor * v = of(value, { s.n_rows, s.n_heads, n_tokens, n_seqs });
    ggml_tensor * states = of(cache.states, { s.n_state(), (int64_t) cache.states.size() / s.n_state() });
    ggml_tensor * log = s.n_log > 0 ? of(cache.log, { (int64_t) cache.log.size() / cache.n_cells, cache.n_cells }) : nullptr;
    ggml_tensor * i = tensor(ctx, ids.data(), GGML_TYPE_I32, { (int64_t) ids.size() });
    const pyllama_spec_scan_place place = { head, (int32_t) cache.n_cells, fresh, (int32_t) s.n_log };
    ggml_tensor * out = s.kind == SSM
        ? pyllama_spec_ssm_scan(ctx, v, of(rate, { s.n_heads, n_tokens, n_seqs }), of(a, { 1, s.n_heads }), k, q, states, log, i, place)
        : pyllama_spec_delta_scan(ctx, q, k, v, of(decay, { s.n_decay(), s.n_heads, n_tokens, n_seqs }),
                                  of(rate, { 1, s.n_heads, n_tokens, n_seqs }), states, log, i, place);
    Numbers result((size_t) ggml_nelements(out));
    out->data = result.data();
    ggml_cgraph * graph = ggml_new_graph(ctx);
    ggml_build_forward_expand(graph, out);
    ggml_cplan plan = ggml_graph_plan(graph, s.n_threads, nullptr);
    std::vector<uint8_t> work(plan.work_size + 64);
    plan.work_data = work.data();
    if (ggml_graph_compute(graph, &plan) != GGML_STATUS_SUCCESS) {
        std::exit(3);
    }
    ggml_free(ctx);
    result.resize((size_t) (s.n_rows * s.n_heads * n_tokens * n_seqs));
    return result;
}

// The formulas, in double precision: the error of one token's output and of the state behind it.
double error_of(const Shape & s, const Numbers & a, const Token & t, const Numbers & before, const Numbers & after, const Numbers & out) {
    double worst = 0, largest = 1e-3;
    for (int64_t h = 0; h < s.n_heads; ++h) {
        // Heads of keys repeat in the one kind, and each is used by neighbours in the other.
        const int64_t kh = s.kind == SSM ? h / (s.n_heads / s.n_key_heads) : h % s.n_key_heads;
        const double  step = s.kind == SSM ? std::log1p(std::exp((double) t.rate[h])) : t.rate[h];
        for (int64_t r = 0; r < s.n_rows; ++r) {
            std::vector<double> row((size_t) s.n_cols);
            double answer = 0, sum = 0;
            for (int64_t c = 0; c < s.n_cols; ++c) {
                const double g = s.kind == SSM ? step * a[h] : t.decay[h * s.n_decay() + (s.n_decay() > 1 ? c : 0)];
                row[c] = before[(h * s.n_rows + r) * s.n_cols + c] * std::exp(g);
                answer += row[c] * t.key[kh * s.n_cols + c];
            }
            const double x = t.value[h * s.n_rows + r];
            const double coef = (s.kind == SSM ? x : x - answer) * step;
            for (int64_t c = 0; c < s.n_cols; ++c) {
                row[c] += coef * t.key[kh * s.n_cols + c];
                sum += row[c] * t.query[kh * s.n_cols + c];
                worst = std::max(worst, std::fabs(row[c] - after[(h * s.n_rows + r) * s.n_cols + c]));
                largest = std::max(largest, std::fabs(row[c]));
            }
            sum *= s.kind == SSM ? 1.0 : 1.0 / std::sqrt((double) s.n_rows);
            worst = std::max(worst, std::fabs(sum - out[h * s.n_rows + r]));
            largest = std::max(largest, std::fabs(sum));
        }
    }
    return worst / largest;
}

// A sequence as single tokens make it: its state behind each of them.
struct Text {
    std::vector<Numbers> states;
    int64_t cell, depth = 0, n_undo = 0;
};

struct Rounds {
    Shape   s;
    bool    has_fault;
    Numbers a = ssm_decays(s);
    Cache   cache;
    std::vector<Text> texts;
    int64_t n_tokens = 0, n_different = 0, n_back = 0;
    double  worst = 0;

    Rounds(const Shape & s, int64_t n_seqs, bool has_fault) : s(s), has_fault(has_fault), cache(s, n_seqs), texts((size_t) n_seqs) {
        // What nobody reads may be anything.
        std::fill(cache.states.begin(), cache.states.end(), NAN);
        for (int64_t i = 0; i < n_seqs; ++i) {
            texts[(size_t) i].cell = i;
        }
    }

    void compare(const float * got, const Numbers & expected) {
        for (size_t i = 0; i < expected.size(); ++i) {
            n_different += std::memcmp(got + i, &expected[i], sizeof(float)) != 0;
        }
    }

    // The expected output of a token, and the state behind it.
    Numbers single(Text & text, const Token & token) {
        Shape alone = s;
        alone.n_log = 0;
        alone.n_threads = 1;
        Cache one(alone, 1);
        const bool is_first = text.states.empty();
        const Numbers before = is_first ? one.states : text.states.back();
        one.states = is_first ? Numbers(one.states.size(), NAN) : before;
        const Numbers out = run(alone, one, a, { { token } }, { 0 }, 0, is_first ? 0 : -1);
        worst = std::max(worst, error_of(s, a, token, before, one.states, out));
        text.states.push_back(one.states);
        return out;
    }

    void go_back(Text & text) {
        while (text.n_undo > 0 && draw(0, 2) > 0) {     // several in a row add up
            const int64_t n = draw(1, text.n_undo);
            text.depth += n;
            text.n_undo -= n;
            text.states.resize(text.states.size() - (size_t) n);
            ++n_back;
        }
        if (text.depth > 0 && !has_fault) {
            const auto shape = s.scan();
            Numbers state((size_t) s.n_state());
            pyllama_spec_scan_back(&shape, cache.states.data() + (cache.n_cells + text.cell) * s.n_state(),
                                   cache.log.data() + text.cell * pyllama_spec_cell_log(&shape), (int32_t) text.depth, state.data());
            compare(state.data(), text.states.back());
        }
    }

    // As the engine does: the cells of the batch's sequences become neighbours, and change places with what is there.
    void round() {
        const int64_t n_cells = cache.n_cells, n_seqs = draw(1, n_cells), head = draw(0, n_cells - n_seqs);
        const int64_t n_entries = draw(n_seqs, n_cells - head), n_new = draw(0, 3) == 0 ? draw(1, 20) : draw(1, 6);
        std::vector<size_t> order(texts.size()), at_cell(texts.size());
        for (size_t i = 0; i < order.size(); ++i) {
            order[i] = i;
        }
        std::shuffle(order.begin(), order.end(), generator);
        std::vector<int64_t> source(texts.size());
        if (draw(0, 4) == 0) {
            texts[order[0]] = { {}, texts[order[0]].cell };
        }
        for (size_t i = 0; i < texts.size(); ++i) {
            source[i] = texts[i].depth * n_cells + texts[i].cell;
            at_cell[(size_t) texts[i].cell] = i;
        }
        int32_t fresh = -1;
        for (int64_t i = 0; i < n_seqs; ++i) {
            Text & mine = texts[order[(size_t) i]], & other = texts[at_cell[(size_t) (head + i)]];
            std::swap(at_cell[(size_t) mine.cell], at_cell[(size_t) other.cell]);
            std::swap(mine.cell, other.cell);
        }
        // New texts share one source, a cell that no other text of the batch comes from.
        for (int64_t i = 0; i < n_entries; ++i) {
            const size_t t = at_cell[(size_t) (head + i)];
            if (texts[t].states.empty()) {
                fresh = fresh < 0 ? (int32_t) (source[t] % n_cells) : fresh;
                source[t] = fresh;
            }
        }
        std::vector<int32_t> ids;
        std::vector<std::vector<Token>> batch((size_t) n_seqs);
        Numbers expected;
        for (int64_t i = 0; i < n_entries; ++i) {
            const size_t t = at_cell[(size_t) (head + i)];
            const int64_t fault = has_fault && source[t] >= n_cells ? n_cells : 0;
            ids.push_back((int32_t) (source[t] - fault));
            texts[t].depth = texts[t].n_undo = 0;
            for (int64_t k = 0; i < n_seqs && k < n_new; ++k) {
                batch[(size_t) i].push_back(draw_token(s));
                const Numbers out = single(texts[t], batch[(size_t) i].back());
                expected.insert(expected.end(), out.begin(), out.end());
            }
            texts[t].n_undo = i < n_seqs ? std::min(n_new - 1, s.n_log) : 0;
        }
        const Numbers out = run(s, cache, a, batch, ids, (int32_t) head, fresh);
        compare(out.data(), expected);
        n_tokens += n_seqs * n_new;
        for (int64_t i = 0; i < n_entries; ++i) {
            Text & text = texts[at_cell[(size_t) (head + i)]];
            if (!text.states.empty()) {
                compare(cache.states.data() + text.cell * s.n_state(), text.states.back());
            }
        }
        // The others are where they were, or were moved with what they had.
        for (Text & text : texts) {
            if (text.cell < head || text.cell >= head + n_entries) {
                text.states.clear();
                text.depth = text.n_undo = 0;
            } else {
                go_back(text);
            }
        }
    }
};

}  // namespace

int main(int argc, char ** argv) {
    generator.seed((unsigned) std::atoi(argc > 1 ? argv[1] : "1"));
    const int  n_draws   = std::atoi(argc > 2 ? argv[2] : "10");
    const bool has_fault = argc > 3 && std::string(argv[3]) == "fault";
    const int64_t widths[] = { 1, 3, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 160 };
    for (int i = 0; i < n_draws; ++i) {
        Shape s;
        s.kind        = (Kind) (i % 3);
        s.n_key_heads = draw(1, 3);
        s.n_heads     = s.n_key_heads * draw(1, 3);
        s.n_cols      = widths[draw(0, 12)];
        s.n_rows      = s.kind == SSM ? draw(1, 9) : s.n_cols;
        s.n_log       = has_fault ? draw(2, 9) : draw(0, 9);
        s.n_threads   = i % 6 == 0 ? 3 : 1;   // waiting threads spin, and other programs run beside
        Rounds rounds(s, draw(1, 4), has_fault);
        for (int n = 0; n < 12; ++n) {
            rounds.round();
        }
        std::printf("%s heads=%d/%d rows=%d cols=%d log=%d seqs=%d %d %d %d %.3g\n",
                    s.kind == SSM ? "ssm" : s.kind == DELTA ? "delta" : "wide", (int) s.n_heads, (int) s.n_key_heads, (int) s.n_rows,
                    (int) s.n_cols, (int) s.n_log, (int) rounds.texts.size(), (int) rounds.n_tokens, (int) rounds.n_back,
                    (int) rounds.n_different, rounds.worst);
    }
}
