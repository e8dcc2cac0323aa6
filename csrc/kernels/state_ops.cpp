#include "state_ops.h"

#include "scan_rows.h"

#include "ggml-cpu-impl.h"

using namespace pyllama_spec;

namespace {

template <class T = const float> T * at(const ggml_tensor * t, int64_t i1, int64_t i2, int64_t i3) {
    return (T *) ((char *) t->data + i1 * (int64_t) t->nb[1] + i2 * (int64_t) t->nb[2] + i3 * (int64_t) t->nb[3]);
}

constexpr int64_t BLOCK = 16;   // tokens whose operands stay in the first-level cache

#if (defined(__AVX512F__) && defined(__AVX512DQ__)) || (defined(__AVX2__) && defined(__FMA__)) || \
    (defined(__ARM_NEON) && defined(__aarch64__) && !defined(__ARM_FEATURE_SVE))
constexpr bool HAS_EXP = true;
inline Vector::T exp_of_each(Vector::T x) {
    return ggml_v_expf(x);
}
#else
constexpr bool HAS_EXP = false;
inline Vector::T exp_of_each(Vector::T x) {
    return x;
}
#endif

// Takes channels c .. c + R of Mamba-1 through tokens t0 .. t1 of a sequence. A channel is a head with one row.
template <int NV, int R> void run_channels(const ggml_tensor * dst, int64_t c, int64_t seq, int64_t t0, int64_t t1) {
    using V = Vector;
    const ggml_tensor * x = dst->src[1], * dt = dst->src[2], * a = dst->src[3], * b = dst->src[4], * out = dst->src[5];
    const int64_t n_cols = NV * V::N, n_channels = x->ne[1], n_tokens = x->ne[2], n_seqs = x->ne[3];
    const int64_t n_planes = ggml_get_op_params_i32(dst, 0), group = c / (n_channels / b->ne[1]);
    float * planes = (float *) dst->data + ggml_nelements(x);
    const auto plane = [&](int64_t d) { return planes + ((d * n_seqs + seq) * n_channels + c) * n_cols; };
    const int32_t cell = ((const int32_t *) dst->src[6]->data)[seq];
    const float * from = t0 > 0 ? plane(0) : at(dst->src[0], 0, 0, cell) + c * n_cols;
    V::T s[R][NV], rates[R][NV];
    each<NV>(NV, [&](auto i) PYLLAMA_SPEC_INLINE {
        each<R>(R, [&](auto j) PYLLAMA_SPEC_INLINE {
            s[j][i]     = V::load(from + j * n_cols + i * V::N);
            rates[j][i] = V::load(at(a, c + j, 0, 0) + i * V::N);
        });
    });
    const auto store = [&](float * to) PYLLAMA_SPEC_INLINE {
        each<NV>(NV, [&](auto i) PYLLAMA_SPEC_INLINE {
            each<R>(R, [&](auto j) PYLLAMA_SPEC_INLINE { V::store(to + j * n_cols + i * V::N, s[j][i]); });
        });
    };
    for (int64_t t = t0; t < t1; ++t) {
        const float * steps = (const float *) ((const char *) dt->data + t * (int64_t) dt->nb[1] + seq * (int64_t) dt->nb[2]) + c;
        const float * key = at(b, group, t, seq), * query = at(out, group, t, seq), * value = at(x, c, t, seq);
        float * y = (float *) dst->data + (seq * n_tokens + t) * n_channels + c;
        V::T acc[R], step[R], coef[R];
        each<R>(R, [&](auto j) PYLLAMA_SPEC_INLINE {
            const float positive = ggml_compute_softplus_f32(steps[j]);
            step[j] = V::all(positive);
            coef[j] = V::all(value[j] * positive);
            acc[j]  = V::all(0.0f);
        });
        each<NV>(NV, [&](auto i) PYLLAMA_SPEC_INLINE {
            const V::T k = V::load(key + i * V::N), q = V::load(query + i * V::N);
            each<R>(R, [&](auto j) PYLLAMA_SPEC_INLINE {
                const V::T decay = exp_of_each(V::mul(step[j], rates[j][i]));
                s[j][i] = V::add_product(V::mul(s[j][i], decay), k, coef[j]);
                acc[j]  = V::add_product(acc[j], s[j][i], q);
            });
        });
        sum_each<V, R>(acc, y);
        const int64_t depth = n_tokens - 1 - t;
        if (depth > 0 && depth < n_planes) {
            store(plane(depth));
        }
    }
    store(plane(0));
}

template <int NV> void run_mamba(const ggml_tensor * dst, int ith, int nth) {
    constexpr int R = 4;
    const ggml_tensor * x = dst->src[1];
    // Processes whole groups of R channels; all use the same keys.
    const int64_t n_units = x->ne[1] / R, n_each = (n_units + nth - 1) / nth;
    const int64_t begin = std::min(n_units, n_each * ith), end = std::min(n_units, begin + n_each);
    for (int64_t seq = 0; seq < x->ne[3]; ++seq) {
        for (int64_t t0 = 0; t0 < x->ne[2]; t0 += BLOCK) {
            for (int64_t unit = begin; unit < end; ++unit) {
                run_channels<NV, R>(dst, unit * R, seq, t0, std::min(t0 + BLOCK, x->ne[2]));
            }
        }
    }
}

}  // namespace

extern "C" bool pyllama_spec_mamba_scan(ggml_tensor * dst, int ith, int nth) {
    const ggml_tensor * x = dst->src[1], * a = dst->src[3], * b = dst->src[4];
    const int64_t n_cols = dst->src[0]->ne[0];
    const bool is_ours = HAS_EXP && a->ne[0] == n_cols && n_cols > 1 && x->ne[0] == 1 && x->nb[1] == sizeof(float) &&
        x->ne[1] % b->ne[1] == 0 && (x->ne[1] / b->ne[1]) % 4 == 0 && n_cols % Vector::N == 0;
    switch (is_ours ? n_cols / Vector::N : 0) {
        case 1: run_mamba<1>(dst, ith, nth); return true;
        case 2: run_mamba<2>(dst, ith, nth); return true;
        case 4: run_mamba<4>(dst, ith, nth); return true;
        default: return false;
    }
}

extern "C" bool pyllama_spec_short_conv(ggml_tensor * dst, int ith, int nth) {
    const ggml_tensor * in = dst->src[0], * weights = dst->src[1];
    constexpr int64_t N = 16, MOST = 8;     // parallel channels, and the maximum window
    const int64_t width = weights->ne[0], n_channels = in->ne[1], n_tokens = dst->ne[1];
    if (width > MOST || dst->nb[0] != sizeof(float) || N % Vector::N != 0) {
        return false;
    }
    const int64_t n_units = (n_channels + N - 1) / N, n_each = (n_units + nth - 1) / nth;
    const int64_t begin = std::min(n_channels, n_each * ith * N), end = std::min(n_channels, begin + n_each * N);
    float w[MOST * N] = {}, window[(MOST - 1 + BLOCK) * N] = {}, sums[N];
    for (int64_t seq = 0; seq < dst->ne[2]; ++seq) {
        for (int64_t c = begin; c < end; c += N) {
            const int64_t n = std::min(N, end - c);
            for (int64_t j = 0; j < n; ++j) {
                const float * own = at(weights, c + j, 0, 0);
                for (int64_t k = 0; k < width; ++k) {
                    w[k * N + j] = own[k];
                }
            }
            for (int64_t t0 = 0; t0 < n_tokens; t0 += BLOCK) {
                const int64_t n_block = std::min(BLOCK, n_tokens - t0);
                for (int64_t j = 0; j < n; ++j) {
                    const float * own = at(in, c + j, seq, 0) + t0;
                    for (int64_t k = 0; k < width - 1 + n_block; ++k) {
                        window[k * N + j] = own[k];
                    }
                }
                for (int64_t t = 0; t < n_block; ++t) {
                    for (int64_t j = 0; j < N; j += Vector::N) {
                        Vector::T acc = Vector::all(0.0f);
                        for (int64_t k = 0; k < width; ++k) {
                            acc = Vector::add_product(acc, Vector::load(window + (t + k) * N + j), Vector::load(w + k * N + j));
                        }
                        Vector::store(sums + j, acc);
                    }
                    std::copy_n(sums, n, at<float>(dst, t0 + t, seq, 0) + c);
                }
            }
        }
    }
    return true;
}
