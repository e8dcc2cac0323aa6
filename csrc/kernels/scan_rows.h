// Takes one head of a state through the tokens of a batch, a few rows at a time; scan.cpp distributes the heads.
#pragma once

#include "float_avx512.h"

#include "ggml-impl.h"
#include "simd-mappings.h"
#include "vec.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace pyllama_spec {

// The maximum number of columns for registers and stack; PYLLAMA_SPEC_SCAN_COLS gives it to callers.
constexpr int64_t MAX_COLS = 256;

// Products and sums are fused explicitly, so that a row rounds alike in every build.
struct Single {
    using T = float;
    static constexpr int64_t N = 1;
    static T load(const float * p) { return *p; }
    static void store(float * p, T v) { *p = v; }
    static T all(float x) { return x; }
    static T mul(T a, T b) { return a * b; }
    static float sum(T v) { return v; }
    static T add_product(T sum, T a, T b) {
#if defined(__FP_FAST_FMAF)
        return __builtin_fmaf(a, b, sum);
#else
        return sum + a * b;
#endif
    }
};

// Vectors of unknown length (SVE, RVV) cannot be array elements.
#if defined(GGML_SIMD) && !defined(__ARM_FEATURE_SVE) && !defined(__riscv_v_intrinsic)
struct Vector {
    using T = GGML_F32_VEC;
    static constexpr int64_t N = GGML_F32_EPR;
    static T load(const float * p) { return GGML_F32_VEC_LOAD(p); }
    static void store(float * p, T v) { GGML_F32_VEC_STORE(p, v); }
    static T all(float x) { return GGML_F32_VEC_SET1(x); }
    static T mul(T a, T b) { return GGML_F32_VEC_MUL(a, b); }
    static T add_product(T sum, T a, T b) { return GGML_F32_VEC_FMA(sum, a, b); }
    static float sum(T v) {
        float lanes[N];
        store(lanes, v);
        for (int64_t n = N / 2; n > 0; n /= 2) {
            for (int64_t i = 0; i < n; ++i) {
                lanes[i] += lanes[i + n];
            }
        }
        return lanes[0];
    }
};
#else
using Vector = Single;
#endif

// Calls f(0), f(1) .. with constants, so that an array indexed only by them stays in registers. GCC keeps an array in
// memory if a loop indexes it, even an unrolled loop.
template <class F, int... I> PYLLAMA_SPEC_INLINE inline void call_each(const F & f, std::integer_sequence<int, I...>) {
    (f(std::integral_constant<int, I>()), ...);
}
// N is 0 if the count is not a constant.
template <int N, class F> PYLLAMA_SPEC_INLINE inline void each(int64_t n, const F & f) {
    if constexpr (N > 0) {
        call_each(f, std::make_integer_sequence<int, N>());
    } else {
        for (int64_t i = 0; i < n; ++i) {
            f(i);
        }
    }
}

// Sums the lanes of each vector, always in the same order.
template <class V, int M> inline void sum_each(const typename V::T * v, float * out) {
#if defined(__AVX512F__)
    if constexpr (std::is_same_v<typename V::T, __m512>) {
        for (int m = 0; m < M; m += 4) {
            const auto at = [&](int i) { return v[std::min(m + i, M - 1)]; };
            float four[4];
            _mm_storeu_ps(four, avx512::sum_lanes(at(0), at(1), at(2), at(3)));
            std::copy_n(four, std::min(4, M - m), out + m);
        }
        return;
    }
#endif
    for (int m = 0; m < M; ++m) {
        out[m] = V::sum(v[m]);
    }
}

inline float dot_of(int64_t n, const float * a, const float * b) {
    Vector::T acc = Vector::all(0.0f);
    int64_t i = 0;
    for (; i + Vector::N <= n; i += Vector::N) {
        acc = Vector::add_product(acc, Vector::load(a + i), Vector::load(b + i));
    }
    float sum = Vector::sum(acc);
    for (; i < n; ++i) {
        sum = Single::add_product(sum, a[i], b[i]);
    }
    return sum;
}

// Computes exp of each number; a position always uses the same instructions.
inline void exp_of(int64_t n, float * out, const float * in) {
    int64_t i = 0;
#if (defined(__AVX512F__) && defined(__AVX512DQ__)) || (defined(__AVX2__) && defined(__FMA__)) || \
    (defined(__ARM_NEON) && defined(__aarch64__) && !defined(__ARM_FEATURE_SVE))
    for (; i + Vector::N <= n; i += Vector::N) {
        Vector::store(out + i, ggml_v_expf(Vector::load(in + i)));
    }
#endif
    for (; i < n; ++i) {
        out[i] = expf(in[i]);
    }
}

// Data that a head's rows share. Strides are in floats, from token to token.
struct Head {
    int64_t n_rows, n_cols, n_decay, n_tokens;
    const float * key;   int64_t key_stride;     // {n_cols}
    const float * query; int64_t query_stride;   // {n_cols}
    const float * value; int64_t value_stride;   // {n_rows}
    const float * rate;                          // {n_tokens}: beta, or the step of Mamba
    const float * cross;                         // {n_tokens}: the query times the key
    const float * decay;                         // {n_decay, n_tokens}
    float *       out;   int64_t out_stride;     // {n_rows}
    float         scale;                         // of the output
    // The state before the batch, or NULL for zeros, and the n_again tokens of the log to apply to it.
    const float * from;
    const float * again; int64_t n_again;
    // The destinations of the final state, of the state before token n_before, and of the log from that token on.
    float *       to;
    float *       older;
    float *       log;
    int64_t       n_before;
};

// Takes rows r .. r + R of a head through tokens t0 .. t1. NV: vectors per row, 0 if unknown at compile time. IS_DELTA:
// the coefficient is the value minus the row's own answer to the key, times the rate.
template <class V, int NV, int R, bool IS_DELTA, bool IS_WIDE>
inline void run_rows(const Head & h, int64_t r, int64_t t0, int64_t t1) {
    using T = typename V::T;
    constexpr int64_t MOST = NV > 0 ? NV : MAX_COLS / V::N;
    const int64_t n = NV > 0 ? NV : h.n_cols / V::N;
    const int64_t n_token_log = h.n_cols + h.n_rows + h.n_decay;
    T s[R][MOST];
#define PYLLAMA_SPEC_EACH_ROW each<R>(R, [&](auto j) PYLLAMA_SPEC_INLINE
#define PYLLAMA_SPEC_EACH_VECTOR each<NV>(n, [&](auto i) PYLLAMA_SPEC_INLINE
    const float * from = t0 > 0 ? h.to : h.from;
    PYLLAMA_SPEC_EACH_VECTOR {
        PYLLAMA_SPEC_EACH_ROW {
            s[j][i] = from != nullptr ? V::load(from + (r + j) * h.n_cols + i * V::N) : V::all(0.0f);
        });
    });
    const auto decay_at = [&](const float * decay, int64_t i) PYLLAMA_SPEC_INLINE {
        return IS_WIDE ? V::load(decay + i * V::N) : V::all(*decay);
    };
    const auto store = [&](float * to) PYLLAMA_SPEC_INLINE {
        PYLLAMA_SPEC_EACH_VECTOR {
            PYLLAMA_SPEC_EACH_ROW { V::store(to + (r + j) * h.n_cols + i * V::N, s[j][i]); });
        });
    };
    if (t0 == 0) {
        for (int64_t e = 0; e < h.n_again; ++e) {
            const float * entry = h.again + e * n_token_log, * decay = entry + h.n_cols + h.n_rows;
            T c[R];
            PYLLAMA_SPEC_EACH_ROW { c[j] = V::all(entry[h.n_cols + r + j]); });
            PYLLAMA_SPEC_EACH_VECTOR {
                const T d = decay_at(decay, i), k = V::load(entry + i * V::N);
                PYLLAMA_SPEC_EACH_ROW { s[j][i] = V::add_product(V::mul(s[j][i], d), k, c[j]); });
            });
        }
    }
    if (h.older != nullptr && t0 == h.n_before) {
        store(h.older);
    }
    for (int64_t t = t0; t < t1; ++t) {
        const float * key   = h.key + t * h.key_stride;
        const float * query = h.query + t * h.query_stride;
        const float * decay = h.decay + t * h.n_decay;
        const float * value = h.value + t * h.value_stride + r;
        const float   rate  = h.rate[t];
        float coef[R], sums[2 * R];
        T acc[2 * R], c[R];
        each<2 * R>(2 * R, [&](auto j) PYLLAMA_SPEC_INLINE { acc[j] = V::all(0.0f); });
        if constexpr (IS_DELTA) {
            // The answer to the query is computed from the state before the update, so that one pass gives both sums:
            // query * (row + coef * key) = query * row + coef * cross.
            PYLLAMA_SPEC_EACH_VECTOR {
                const T d = decay_at(decay, i), k = V::load(key + i * V::N), q = V::load(query + i * V::N);
                PYLLAMA_SPEC_EACH_ROW {
                    s[j][i]    = V::mul(s[j][i], d);
                    acc[j]     = V::add_product(acc[j], s[j][i], k);
                    acc[R + j] = V::add_product(acc[R + j], s[j][i], q);
                });
            });
            sum_each<V, 2 * R>(acc, sums);
            PYLLAMA_SPEC_EACH_ROW {
                coef[j] = (value[j] - sums[j]) * rate;
                sums[j] = Single::add_product(sums[R + j], coef[j], h.cross[t]);
                c[j]    = V::all(coef[j]);
            });
            PYLLAMA_SPEC_EACH_VECTOR {
                const T k = V::load(key + i * V::N);
                PYLLAMA_SPEC_EACH_ROW { s[j][i] = V::add_product(s[j][i], k, c[j]); });
            });
        } else {
            PYLLAMA_SPEC_EACH_ROW {
                coef[j] = value[j] * rate;
                c[j]    = V::all(coef[j]);
            });
            PYLLAMA_SPEC_EACH_VECTOR {
                const T d = decay_at(decay, i), k = V::load(key + i * V::N), q = V::load(query + i * V::N);
                PYLLAMA_SPEC_EACH_ROW {
                    s[j][i] = V::add_product(V::mul(s[j][i], d), k, c[j]);
                    acc[j]  = V::add_product(acc[j], s[j][i], q);
                });
            });
            sum_each<V, R>(acc, sums);
        }
        for (int j = 0; j < R; ++j) {
            h.out[t * h.out_stride + r + j] = sums[j] * h.scale;
        }
        if (h.log != nullptr && t >= h.n_before) {
            std::copy_n(coef, R, h.log + 1 + (t - h.n_before) * n_token_log + h.n_cols + r);
        }
    }
    store(h.to);
#undef PYLLAMA_SPEC_EACH_ROW
#undef PYLLAMA_SPEC_EACH_VECTOR
}

template <class V, int NV, bool IS_DELTA, bool IS_WIDE> void run_tokens(const Head & h, int64_t t0, int64_t t1) {
    // Computing several rows together hides their latency; their states may fill half of the registers.
#if defined(__AVX512F__) || defined(__aarch64__)
    constexpr int N_REGISTERS = 32;
#else
    constexpr int N_REGISTERS = 16;
#endif
    constexpr int R = NV == 0 ? 1 : std::clamp(N_REGISTERS / 2 / std::max(NV, 1), 1, 4);
    int64_t r = 0;
    for (; r + R <= h.n_rows; r += R) {
        run_rows<V, NV, R, IS_DELTA, IS_WIDE>(h, r, t0, t1);
    }
    for (; r < h.n_rows; ++r) {
        run_rows<V, NV, 1, IS_DELTA, IS_WIDE>(h, r, t0, t1);
    }
}

// Processes the whole batch, then writes the shared data to the log: until then, rows read the old log.
template <bool IS_DELTA, bool IS_WIDE> void run_head(const Head & h) {
    // Keys and queries of this many tokens stay in the first-level cache for all rows.
    constexpr int64_t BLOCK = 16;
    const auto run = [&](int64_t t0, int64_t t1) {
        if (h.n_cols % Vector::N != 0) {
            return run_tokens<Single, 0, IS_DELTA, IS_WIDE>(h, t0, t1);
        }
        switch (h.n_cols / Vector::N) {
            case 1:  return run_tokens<Vector, 1, IS_DELTA, IS_WIDE>(h, t0, t1);
            case 2:  return run_tokens<Vector, 2, IS_DELTA, IS_WIDE>(h, t0, t1);
            case 4:  return run_tokens<Vector, 4, IS_DELTA, IS_WIDE>(h, t0, t1);
            case 8:  return run_tokens<Vector, 8, IS_DELTA, IS_WIDE>(h, t0, t1);
            case 16: return run_tokens<Vector, 16, IS_DELTA, IS_WIDE>(h, t0, t1);
            default: return run_tokens<Vector, 0, IS_DELTA, IS_WIDE>(h, t0, t1);
        }
    };
    for (int64_t t0 = 0; t0 < h.n_tokens;) {
        const int64_t end = h.older != nullptr && t0 < h.n_before ? h.n_before : h.n_tokens;
        const int64_t t1  = std::min(t0 + BLOCK, end);
        run(t0, t1);
        t0 = t1;
    }
    if (h.log != nullptr) {
        *h.log = (float) (h.n_tokens - h.n_before);
        for (int64_t t = h.n_before; t < h.n_tokens; ++t) {
            float * entry = h.log + 1 + (t - h.n_before) * (h.n_cols + h.n_rows + h.n_decay);
            std::copy_n(h.key + t * h.key_stride, h.n_cols, entry);
            std::copy_n(h.decay + t * h.n_decay, h.n_decay, entry + h.n_cols + h.n_rows);
        }
    }
}

// Takes a state through the tokens of a log only.
template <bool IS_WIDE> void run_again(Head h) {
    const auto run = [&](auto vector) {
        using V = decltype(vector);
        for (int64_t r = 0; r < h.n_rows; ++r) {
            run_rows<V, 0, 1, false, IS_WIDE>(h, r, 0, 0);
        }
    };
    return h.n_cols % Vector::N == 0 ? run(Vector()) : run(Single());
}

}  // namespace pyllama_spec
