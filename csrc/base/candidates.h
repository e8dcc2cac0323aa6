// The likeliest tokens of a row of logits, chosen where the logits are: two numbers of each go to the host, and not a
// vocabulary.
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

// Of logits [n_draft, n_rows] the n likeliest ids with their probabilities, behind the columns of `before`, which may
// be NULL. Where the vocabulary has fewer, the probability of the rest is negative.
candidates build_candidates(ggml_context * ctx, ggml_cgraph * gf, ggml_tensor * logits, int n, ggml_tensor * before);

// What a draft id is: one of n_draft, whose ids of the target are in `ids_of`, or nothing where they are the same; a
// slot, where a part of the vocabulary is used.
struct draft_ids {
    int32_t n_draft;
    const std::vector<int32_t> & ids_of;
    const draft_output * part;

    int32_t size() const;
    int32_t in_target(int32_t id) const;
};

// Reads what was packed for one row: at most n_max of n ranks. Returns how many there are. Throws std::runtime_error for
// a broken result.
int32_t read_candidates(const float * packed, int32_t n, const draft_ids & known, int32_t n_max, int32_t * ids,
                        float * probabilities);

// How many of the likeliest tokens are read of a row of an MTP head: the best one, and one beside it for who mixes
// distributions.
constexpr int32_t HEAD_CANDIDATES = 2;

// Of token i of a head's last batch those that a device chose, as ids of the target: read_candidates() of them. Negative
// where logits are computed on the CPU: then the row says. hooks/held_logits.cpp.
int32_t held_candidates(llama_context * ctx, int32_t i, int32_t n_max, int32_t * ids, float * probabilities);

} // namespace llama_spec
