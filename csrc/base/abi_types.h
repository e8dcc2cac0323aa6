/* Types of the C ABI that the layers below csrc/abi/ use as well: status codes, batches, and facts about a draft.
 * csrc/ffi_build.py reads the part between the two markers as the beginning of the cffi declaration. */
#ifndef LLAMA_SPEC_ABI_TYPES_H
#define LLAMA_SPEC_ABI_TYPES_H

#include <stdbool.h>
#include <stdint.h>

/* cdef begin */
enum llama_spec_status {
    LLAMA_SPEC_OK          =  0,
    LLAMA_SPEC_ARGUMENT    = -1,  /* an argument is out of range */
    LLAMA_SPEC_LOAD        = -2,  /* a file cannot be read or is not what it should be */
    LLAMA_SPEC_MEMORY      = -3,  /* an allocation failed */
    LLAMA_SPEC_FULL        = -4,  /* no room for the batch in the context */
    LLAMA_SPEC_BUSY        = -5,  /* the handle is in use by another thread */
    LLAMA_SPEC_ENGINE      = -6,  /* the engine failed; a context that reports it may be poisoned */
    LLAMA_SPEC_UNSUPPORTED = -7,  /* the model or the build cannot do this */
    LLAMA_SPEC_CANCELLED   = -8,  /* llama_spec_cancel() was called during a decode */
    LLAMA_SPEC_POISONED    = -9,  /* an earlier failure left this context in an unknown state */
    LLAMA_SPEC_EXITING     = -10, /* llama_spec_shutdown() was called */
    LLAMA_SPEC_FORKED      = -11, /* the handle belongs to the process that this one was forked from */
    LLAMA_SPEC_REMOTE      = -12  /* a server of layers was lost; reopen what lay on it */
};

/* What the rows of a draft's batch are. */
enum llama_spec_draft_mode {
    LLAMA_SPEC_DRAFT_FEATURES = 0,  /* features of the target: layer inputs, side by side */
    LLAMA_SPEC_DRAFT_HIDDEN   = 1   /* the draft's own hidden rows of the step before */
};

/* In place of a layer's number: the rows that the model's own MTP head reads. */
enum { LLAMA_SPEC_HEAD_ROWS = 1000000 };

struct llama_spec_batch {
    int32_t n_tokens;
    const int32_t * ids;        /* [n_tokens], or NULL when only rows are given */
    const float   * rows;       /* [n_tokens, n_row] state or embedding rows, or NULL */
    int32_t         n_row;
    const float   * embd;       /* [n_tokens, n_embd_inp] for a head: rows of media in the place of ids, beside its rows; or NULL */
    const int32_t * pos;        /* [n_tokens] */
    const int32_t * grid;       /* [2, n_tokens] row and column of media rows, counted like pos; NULL: they equal pos */
    const int32_t * seq;        /* [n_tokens] */
    const int8_t  * output;     /* [n_tokens] non-zero to get logits */
    int32_t         mode;       /* enum llama_spec_draft_mode; ignored by other models */
    int32_t         head;       /* for an MTP context: which of the model's heads computes the batch, 0 the first */
    bool candidates_only;       /* for a draft: only llama_spec_draft_candidates() is needed, no logits */
    bool is_whole;              /* each row sees all rows of the batch, the later ones too; at most n_ubatch */
};

/* For a draft that predicts a block of tokens at once. */
struct llama_spec_block {
    int32_t n_slots;            /* block size in training, including the last known token; 0 for other models */
    int32_t mask_id;            /* the token in slots to predict */
    int32_t n_window;           /* how many positions back all its layers see; 0: unlimited */
    bool guesses_behind;        /* each slot predicts the token after it, the first slot too; otherwise its own */
    bool has_confidence;
};
/* cdef end */

#endif
