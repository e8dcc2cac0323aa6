// Scans recurrent states in place, and restores the state of some tokens ago.
//
// Each head of a layer has a matrix of n_rows * n_cols numbers, and each token changes its row r by
//     row = decay * row + coef[r] * key
// with the head's key and decay, and a coefficient for the row. In a gated delta net the coefficient depends on the row
// (Yang et al., arXiv 2412.06464), in Mamba-2 only on the token (Dao and Gu, arXiv 2405.21060). Rows are independent,
// so each row is taken through all tokens of a batch in registers.
//
// For rollbacks, a cell holds its newest state, the state before the last n_log tokens, and the keys, coefficients and
// decays of these tokens. The state d tokens before the end is recomputed from the older state and n_log - d of these
// tokens, with equal bits. The next batch does this when it reads the state.
#pragma once

#include "ggml.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct pyllama_spec_scan_shape {
    int64_t n_heads, n_rows, n_cols;
    int64_t n_decay;    // 1, or n_cols if each column has its own decay
    int64_t n_log;      // tokens that a cell remembers; 0 without rollbacks
};

// Sizes in numbers: of a token in the log, of a head's log, which begins with its number of tokens, of a cell's log and
// state.
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

// The maximum number of columns for the kernel's registers and stack.
#define PYLLAMA_SPEC_SCAN_COLS 256

// The cells of a batch: entry i of `ids`, depth * n_cells + cell, is the source of cell head + i. A source equal to
// `fresh` is all zero. The first entries are the batch's sequences; the others are only moved.
struct pyllama_spec_scan_place {
    int32_t head, n_cells, fresh, n_log;
};

// A one-dimensional tensor that the CPU computes: the output {n_rows, n_heads, n_tokens, n_seqs}, followed by the
// kernel's scratch. Computing it also changes the cells' states. states: {n_heads * n_rows * n_cols, n_cells or, with a
// log, 2 * n_cells}; log: {cell_log, n_cells} or NULL; ids: {n_entries}.
struct ggml_tensor * pyllama_spec_delta_scan(struct ggml_context * ctx, struct ggml_tensor * q, struct ggml_tensor * k,
                                             struct ggml_tensor * v, struct ggml_tensor * g, struct ggml_tensor * beta,
                                             struct ggml_tensor * states, struct ggml_tensor * log,
                                             struct ggml_tensor * ids, struct pyllama_spec_scan_place place);
// The operands of ggml_ssm_scan(), with one decay for each head.
struct ggml_tensor * pyllama_spec_ssm_scan(struct ggml_context * ctx, struct ggml_tensor * x, struct ggml_tensor * dt,
                                           struct ggml_tensor * a, struct ggml_tensor * b, struct ggml_tensor * c,
                                           struct ggml_tensor * states, struct ggml_tensor * log,
                                           struct ggml_tensor * ids, struct pyllama_spec_scan_place place);

// Writes a cell's state `depth` > 0 tokens ago to `out`, from the older state and the log.
void pyllama_spec_scan_back(const struct pyllama_spec_scan_shape * shape, const float * older, const float * log,
                            int32_t depth, float * out);

#ifdef __cplusplus
}
#endif
