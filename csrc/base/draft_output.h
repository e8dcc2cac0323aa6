// Rows of an output matrix for a part of the vocabulary. A draft chooses only from these: with a large vocabulary, the
// output product is its most expensive operation.
#pragma once

#include "ggml-cpp.h"

#include <cstdint>

struct ggml_cgraph;

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

} // namespace llama_spec
