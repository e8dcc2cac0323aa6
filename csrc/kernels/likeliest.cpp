#include "kernels/likeliest.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace pyllama_spec {

namespace {

// Loops over this many columns have independent iterations, so that compilers vectorise them.
constexpr int32_t LANES = 32;
constexpr float NONE = -std::numeric_limits<float>::infinity();

struct tops {
    float all = NONE, first = NONE, second = NONE;  // over all ids; over ids that may be chosen
};

inline void take(float x, bool counts, float & all, float & first, float & second) {
    const float v = counts ? x : NONE;
    const float lower = v > first ? first : v;
    all    = x > all ? x : all;
    first  = v > first ? v : first;
    second = lower > second ? lower : second;
}

template <bool HAS_MAP> tops find_tops(const float * x, int32_t n, const int32_t * map) {
    float all[LANES], first[LANES], second[LANES];
    std::fill_n(all, LANES, NONE);
    std::fill_n(first, LANES, NONE);
    std::fill_n(second, LANES, NONE);
    int32_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (int32_t k = 0; k < LANES; ++k) {
            take(x[i + k], !HAS_MAP || map[i + k] >= 0, all[k], first[k], second[k]);
        }
    }
    for (; i < n; ++i) {
        take(x[i], !HAS_MAP || map[i] >= 0, all[0], first[0], second[0]);
    }
    tops out;
    float unused = NONE;
    for (int32_t k = 0; k < LANES; ++k) {
        out.all = std::max(out.all, all[k]);
        take(first[k], true, unused, out.first, out.second);
        take(second[k], true, unused, out.first, out.second);
    }
    return out;
}

constexpr float LEAST = -87.0f;     // e^LEAST is still a normal, not a denormal, number

// e^x for LEAST <= x <= 0, within 2e-7 of it: 2^k * e^r with |r| <= ln(2) / 2. NaN gives NaN.
inline float exp_of_negative(float x) {
    constexpr float ROUND = 12582912.0f;   // 1.5 * 2^23: adding it rounds a number to an integer, in the lowest bits
    const float shifted = x * 1.44269504f + ROUND;
    const float k = shifted - ROUND;
    const float r = (x - k * 0.693359375f) + k * 2.12194440e-4f;
    float p = 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    uint32_t bits;
    std::memcpy(&bits, &shifted, sizeof(bits));
    bits = (bits + 127u) << 23;
    float scale;
    std::memcpy(&scale, &bits, sizeof(scale));
    return p * scale;
}

float sum_of_exp(const float * x, int32_t n, float top) {
    float sums[LANES] = { 0.0f }, d[LANES];
    int32_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        // A separate loop: after a comparison in the same loop, compilers branch and do not vectorise the rest.
        for (int32_t k = 0; k < LANES; ++k) {
            d[k] = x[i + k] - top < LEAST ? LEAST : x[i + k] - top;
        }
        for (int32_t k = 0; k < LANES; ++k) {
            sums[k] += exp_of_negative(d[k]);
        }
    }
    double sum = 0.0;
    for (; i < n; ++i) {
        sum += exp_of_negative(x[i] - top < LEAST ? LEAST : x[i] - top);
    }
    for (float part : sums) {
        sum += part;
    }
    return (float) sum;
}

// The first id except `other` that may be chosen and has this logit; -1 if there is none.
int32_t find(const float * x, int32_t n, const int32_t * map, float value, int32_t other) {
    for (int32_t i = 0; i < n; i += LANES) {
        const int32_t end = std::min(i + LANES, n);
        int32_t n_equal = 0;
        for (int32_t k = i; k < end; ++k) {
            n_equal += x[k] == value;
        }
        for (int32_t k = i; n_equal > 0 && k < end; ++k) {
            if (x[k] == value && k != other && (map == nullptr || map[k] >= 0)) {
                return k;
            }
        }
    }
    return -1;
}

} // namespace

int32_t likeliest(const float * logits, int32_t n, const int32_t * counterparts, int32_t n_max, int32_t * ids,
                  float * probabilities) {
    const tops top = counterparts != nullptr ? find_tops<true>(logits, n, counterparts) : find_tops<false>(logits, n, nullptr);
    const float sum = sum_of_exp(logits, n, top.all);
    int32_t other = -1;
    n_max = std::min(n_max, MAX_LIKELIEST);
    for (int32_t i = 0; i < n_max; ++i) {
        const float value = i == 0 ? top.first : top.second;
        int32_t id = find(logits, n, counterparts, value, other);
        if (id < 0 && i == 0 && std::isnan(sum)) {
            // Comparisons with NaN are false, but the caller must still see a NaN.
            for (id = 0; counterparts != nullptr && id < n && counterparts[id] < 0;) {
                ++id;
            }
        }
        if (id < 0 || id >= n) {
            return i;
        }
        ids[i] = other = id;
        probabilities[i] = std::exp(value - top.all) / sum;
    }
    return n_max;
}

} // namespace pyllama_spec
