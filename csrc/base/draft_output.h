// Rows of an output matrix for a part of the vocabulary. A draft chooses only from these: with a large vocabulary, the
// output product is its most expensive operation.
#pragma once

#include "ggml-cpp.h"

#include <cstdint>
#include <vector>

struct ggml_cgraph;
struct llama_context;

namespace llama_spec {

// Protects logits from being overwritten by nodes computed from them. It applies even if no caller wants them: the
// engine reuses one graph's allocation for another graph with the same number of nodes.
void keep_logits(ggml_tensor * logits);

// Spreads logits of the draft's own ids [n_draft, n_rows] to the target's ids, given by `ids`; all other ids get no
// chance. With `ids` NULL the logits stay unchanged.  [n_vocab, n_rows]
ggml_tensor * spread_logits(ggml_context * ctx, ggml_tensor * logits, ggml_tensor * ids, int64_t n_vocab);

class draft_output {
public:
    // Allocates n_slots rows of n_embd numbers, all zero, with id 0. Throws std::bad_alloc.
    draft_output(ggml_type type, int64_t n_embd, int32_t n_slots);

    int32_t n_slots() const { return (int32_t) rows->ne[1]; }
    size_t row_bytes() const { return rows->nb[1]; }
    // Assigns an id to a slot; `row` is the id's row as stored in the file.
    void set(int32_t slot, int32_t id, const void * row);

    // [n_slots] I32: the id of each slot, as a graph's tensor and in the host's memory.
    ggml_tensor * slot_ids() const { return ids; }
    const int32_t * id_of_slot() const { return static_cast<const int32_t *>(ids->data); }

    // Logits of the slots for normed rows.  [n_slots, n_rows]
    ggml_tensor * product(ggml_context * ctx, ggml_tensor * normed) const;

    // Finds the product behind `logits`, scaled or not, and computes it with these rows instead of the whole matrix.
    // Returns logits of all n_vocab ids; ids without a slot have no chance. NULL if there is no such product.
    ggml_tensor * build(ggml_context * ctx, ggml_cgraph * gf, ggml_tensor * logits, int64_t n_vocab) const;

private:
    ggml_context_ptr        meta;
    ggml_backend_buffer_ptr buffer;
    ggml_tensor * rows = nullptr, * ids = nullptr;
};

// During its lifetime, draft graphs that this thread builds end in such a product; NULL means the whole matrix.
class use_draft_output {
public:
    explicit use_draft_output(const draft_output * output);
    ~use_draft_output();
    use_draft_output(const use_draft_output &) = delete;
    use_draft_output & operator=(const use_draft_output &) = delete;
};
const draft_output * draft_output_in_use();

// ---- Chooses a row's likeliest tokens on the device that computed the logits: only two numbers for each go to the host,
// instead of a whole row.

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
