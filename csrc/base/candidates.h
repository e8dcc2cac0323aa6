// Chooses a row's likeliest tokens on the device that computed the logits: only two numbers for each go to the host,
// instead of a whole row.
#pragma once

#include <cstdint>
#include <vector>

struct ggml_cgraph;
struct ggml_context;
struct ggml_tensor;
struct llama_context;

namespace llama_spec {

class draft_output;

struct candidates {
    ggml_tensor * best;     // I32 [n_rows]: the likeliest draft id
    ggml_tensor * packed;   // F32 [n_before + 2 * n, n_rows]: id and probability of each rank
};

// The n likeliest ids of logits [n_draft, n_rows] with their probabilities, after the columns of `before`, which may be
// NULL. If the vocabulary has fewer ids, the remaining probabilities are negative.
candidates build_candidates(ggml_context * ctx, ggml_cgraph * gf, ggml_tensor * logits, int n, ggml_tensor * before);

// Maps draft ids to the target's. With `part`, a draft id is a slot. Otherwise it is one of n_draft ids, and `ids_of`
// gives the target's id; an empty `ids_of` means that both are the same.
struct draft_ids {
    int32_t n_draft;
    const std::vector<int32_t> & ids_of;
    const draft_output * part;

    int32_t size() const;
    int32_t in_target(int32_t id) const;
};

// Reads the packed candidates of one row: at most n_max of n. Returns how many there are. Throws std::runtime_error for
// an invalid result.
int32_t read_candidates(const float * packed, int32_t n, const draft_ids & known, int32_t n_max, int32_t * ids,
                        float * probabilities);

// How many likeliest tokens are read from an MTP head's row: the best one, and a second one for drafters that mix
// distributions.
constexpr int32_t HEAD_CANDIDATES = 2;

// The candidates that a device chose for token i of a head's last batch, as ids of the target, by read_candidates().
// Negative if the CPU computes the logits: then the caller reads the row. hooks/held_logits.cpp.
int32_t held_candidates(llama_context * ctx, int32_t i, int32_t n_max, int32_t * ids, float * probabilities);

} // namespace llama_spec
