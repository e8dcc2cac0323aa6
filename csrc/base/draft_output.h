// Rows of an output matrix for some ids of the vocabulary. A draft chooses among these alone: its last product is the
// most expensive part of it where the vocabulary is large.
#pragma once

#include "ggml-cpp.h"

#include <cstdint>

struct ggml_cgraph;

namespace llama_spec {

// Keeps logits from being overwritten by what is computed of them. Whether they are wanted or not: where two graphs
// have as many nodes, the engine gives the second one the places that it made for the first.
void keep_logits(ggml_tensor * logits);

// Logits of the draft's own ids [n_draft, n_rows] where the target has them, which is what `ids` says, and no chance for
// all others: the same logits where it is NULL.  [n_vocab, n_rows]
ggml_tensor * spread_logits(ggml_context * ctx, ggml_tensor * logits, ggml_tensor * ids, int64_t n_vocab);

class draft_output {
public:
    // Room for n_slots rows of n_embd numbers, all of the id 0 and zero. Throws std::bad_alloc.
    draft_output(ggml_type type, int64_t n_embd, int32_t n_slots);

    int32_t n_slots() const { return (int32_t) rows->ne[1]; }
    size_t row_bytes() const { return rows->nb[1]; }
    // Lets a slot stand for an id, whose row is given as it lies in the file.
    void set(int32_t slot, int32_t id, const void * row);

    // [n_slots] I32: which id each slot stands for, in a graph and in the host's memory.
    ggml_tensor * slot_ids() const { return ids; }
    const int32_t * id_of_slot() const { return static_cast<const int32_t *>(ids->data); }

    // Logits of the slots for rows that are normed.  [n_slots, n_rows]
    ggml_tensor * product(ggml_context * ctx, ggml_tensor * normed) const;

    // Takes the product that `logits` is, or is scaled from, with these rows instead of the whole matrix: logits of all
    // n_vocab ids, of which those without a slot have no chance. NULL where it is no such product.
    ggml_tensor * build(ggml_context * ctx, ggml_cgraph * gf, ggml_tensor * logits, int64_t n_vocab) const;

private:
    ggml_context_ptr        meta;
    ggml_backend_buffer_ptr buffer;
    ggml_tensor * rows = nullptr, * ids = nullptr;
};

// While one lives, graphs of drafts that this thread builds end in such a product; NULL for the whole matrix.
class use_draft_output {
public:
    explicit use_draft_output(const draft_output * output);
    ~use_draft_output();
    use_draft_output(const use_draft_output &) = delete;
    use_draft_output & operator=(const use_draft_output &) = delete;
};
const draft_output * draft_output_in_use();

} // namespace llama_spec
