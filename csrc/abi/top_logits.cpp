#include "abi/top_logits.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>

namespace llama_spec {

namespace {

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

} // namespace

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

} // namespace llama_spec
