#include "abi/shared_noise.h"

#include <cmath>
#include <limits>

namespace llama_spec {

namespace {

// The finalizer of SplitMix64 (Steele, Lea and Flood 2014): every bit of the result depends on every bit of x.
uint64_t mixed(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

} // namespace

double shared_noise(uint32_t seed, uint64_t place, int32_t id) {
    const uint64_t bits = mixed(mixed(mixed(seed) ^ place) ^ (uint32_t) id);
    // Strictly between 0 and 1, so that both logarithms are finite.
    const double u = ((double) (bits >> 11) + 0.5) * 0x1p-53;
    return -std::log(-std::log(u));
}

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

} // namespace llama_spec
