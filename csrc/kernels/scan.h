// Scans of recurrent states that stay where they are, and how to restore a state of some tokens ago.
//
// Each head of a layer has a matrix of n_rows * n_cols numbers, and each token changes row r of it by
//     row = decay * row + coef[r] * key
// with a key and a decay of the head and a coefficient of the row. A gated delta net computes the coefficient from the
// row (Yang et al., arXiv 2412.06464), Mamba-2 from the token alone (Dao and Gu, arXiv 2405.21060). Rows know nothing of
// each other, so one goes through all tokens of a batch in registers.
//
// For rollbacks a cell holds its newest state, the state before the last n_log tokens, and of each of these the keys,
// coefficients and decays: the state d tokens before the end is the older one, taken through n_log - d of them again,
// with the same bits. That is done where the next batch reads the state anyway.
#pragma once

#include "ggml.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct pyllama_spec_scan_shape {
    int64_t n_heads, n_rows, n_cols;
    int64_t n_decay;    // 1, or n_cols where each column has a decay of its own
    int64_t n_log;      // tokens that a cell remembers; 0 without rollbacks
};

// Numbers of a head, and of a cell: in the log, which begins with the count of its tokens, and of one token.
static inline int64_t pyllama_spec_token_log(const struct pyllama_spec_scan_shape * s) {
    return s->n_cols + s->n_rows + s->n_decay;
}
static inline int64_t pyllama_spec_head_log(const struct pyllama_spec_scan_shape * s) {
    return s->n_log > 0 ? 1 + s->n_log * pyllama_spec_token_log(s) : 0;
}
static inline int64_t pyllama_spec_cell_log(const struct pyllama_spec_scan_shape * s) {
    return s->n_heads * pyllama_spec_head_log(s);
}
static inline int64_t pyllama_spec_cell_state(const struct pyllama_spec_scan_shape * s) {
    return s->n_heads * s->n_rows * s->n_cols;
}

// The most columns that the kernel's registers and stack are made for.
#define PYLLAMA_SPEC_SCAN_COLS 256

// Where the cells of a batch lie: entry i of `ids`, depth * n_cells + cell, is the source of cell head + i. A source
// that is cell `fresh` is all zero. The first entries are the batch's sequences, the others are only moved.
struct pyllama_spec_scan_place {
    int32_t head, n_cells, fresh, n_log;
};

// A tensor of one dimension that the CPU computes: the output {n_rows, n_heads, n_tokens, n_seqs}, and behind it what
// the kernel notes for itself. The cells' states change beside it. states: {n_heads * n_rows * n_cols, n_cells or, with
// a log, 2 * n_cells}; log: {cell_log, n_cells} or NULL; ids: {n_entries}.
struct ggml_tensor * pyllama_spec_delta_scan(struct ggml_context * ctx, struct ggml_tensor * q, struct ggml_tensor * k,
                                             struct ggml_tensor * v, struct ggml_tensor * g, struct ggml_tensor * beta,
                                             struct ggml_tensor * states, struct ggml_tensor * log,
                                             struct ggml_tensor * ids, struct pyllama_spec_scan_place place);
// The operands of ggml_ssm_scan(), with one decay for each head.
struct ggml_tensor * pyllama_spec_ssm_scan(struct ggml_context * ctx, struct ggml_tensor * x, struct ggml_tensor * dt,
                                           struct ggml_tensor * a, struct ggml_tensor * b, struct ggml_tensor * c,
                                           struct ggml_tensor * states, struct ggml_tensor * log,
                                           struct ggml_tensor * ids, struct pyllama_spec_scan_place place);

// The state of a cell `depth` > 0 tokens ago, into `out`, from the older one and the log.
void pyllama_spec_scan_back(const struct pyllama_spec_scan_shape * shape, const float * older, const float * log,
                            int32_t depth, float * out);

#ifdef __cplusplus
}
#endif
