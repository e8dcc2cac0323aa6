/* The C ABI between the engine and pyllama_spec.
 *
 * Every function that can fail returns a code (enum llama_spec_status) and leaves a message for
 * llama_spec_last_error(), per thread. None aborts the process: arguments are checked before they reach the
 * engine, and an assertion or a C++ exception inside it becomes LLAMA_SPEC_ENGINE.
 *
 * Handles own what they need: a context keeps its model alive, a draft context its target, so that they
 * may be freed in any order. One handle is used by one thread at a time; a second one gets LLAMA_SPEC_BUSY.
 * A handle belongs to the process that made it: see llama_spec_after_fork().
 *
 * csrc/ffi_build.py reads the part between the two markers as the cffi declaration, after that of
 * base/abi_types.h, whose types the layers below csrc/abi/ use as well.
 */
#ifndef LLAMA_SPEC_H
#define LLAMA_SPEC_H

#include "base/abi_types.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* cdef begin */
typedef struct llama_spec_model   llama_spec_model;
typedef struct llama_spec_context llama_spec_context;
typedef struct llama_spec_sampler llama_spec_sampler;

/* The message of this thread's last failure; never NULL, valid until the thread's next call. */
const char * llama_spec_last_error(void);
/* The text "major.minor.patch" of the engine, and the features it was compiled with. */
const char * llama_spec_engine_version(void);
const char * llama_spec_system_info(void);
/* Lists the types with one of our CPU kernels for the few rows of a verify batch, as in "BF16 AVX2, F16 AVX2". Empty if
 * the engine's own kernels run. */
const char * llama_spec_row_kernels(void);
/* For comparisons, on this thread: makes decodes use the engine's own kernels instead of ours. Rows of a batch then
 * differ from single rows. */
void llama_spec_set_stock_kernels(bool are_stock);
/* Call before the process ends, so that no thread computes while static data is destroyed. Stops the decodes and loads
 * of all threads, refuses new decodes, and waits until no thread is inside a call, or for the timeout. */
void llama_spec_shutdown(int32_t timeout_ms);
/* Call in a forked child before any other function: the parent's other threads do not exist there. The parent's handles
 * are then refused (LLAMA_SPEC_FORKED), except for reading a vocabulary or a model's facts; freeing one leaks it. The
 * child may open its own. */
void llama_spec_after_fork(void);
/* The number of forks between the first process and this one. */
int32_t llama_spec_fork_generation(void);
/* Prints lines at or above `level` (1 debug .. 4 error, 5 none) to stderr. */
void llama_spec_set_log_level(int level);
/* The same for the engine's work on this thread, instead of the process's level; -1 follows the process's again.
 * Returns the previous level. */
int llama_spec_set_thread_log_level(int level);

/* The engine's long loops, and waits for a server, call this regularly: true cancels the call. */
void llama_spec_on_wait(bool (*wants_to_stop)(void));

/* The engine's number for a type, such as "f16" or "q8_0"; a status for an unknown name. */
int32_t llama_spec_type_id(const char * name);

/* name is NULL past the last. */
int     llama_spec_device(int32_t i, const char ** name, const char ** description,
                          uint64_t * free_bytes, uint64_t * total_bytes);
/* The i-th backend of this build, including the CPU, and its number of devices; *name is NULL past the last one. */
int     llama_spec_backend(int32_t i, const char ** name, int32_t * n_devices);
/* Says whether a GPU, or another machine's server, could take layers. */
bool    llama_spec_supports_gpu(void);

/* ---- servers of layers: other processes, on this machine or others, at "host:port". docs/rpc.md */

/* Says whether this build supports them (GGML_RPC). */
bool llama_spec_has_rpc(void);
/* Sets the timeout for an answer on connections opened from now on. */
void llama_spec_set_server_timeout(int32_t seconds);
/* The i-th device of a server; name is NULL past the last. */
int  llama_spec_server_device(const char * endpoint, int32_t i, const char ** name, uint64_t * free_bytes, uint64_t * total_bytes);
/* Serves the client at the other end of a connected socket until it disconnects. It serves the named devices of this
 * machine. Closes the socket. */
int  llama_spec_serve(int32_t fd, const char * const * devices, int32_t n_devices, int32_t n_threads);

/* ---- model ---------------------------------------------------------------------------------------- */

typedef bool (*llama_spec_progress)(float fraction, void * user);

/* Overrides a key of the file; kind: 0 an integer, 1 a number, 2 a bool, 3 a text of at most 127 bytes. */
struct llama_spec_override {
    const char * key;
    int32_t kind;
    int64_t whole;
    double  real;
    const char * text;
};

struct llama_spec_model_params {
    int32_t n_gpu_layers;       /* < 0: all of them; 0: no device is touched */
    int32_t main_gpu;
    int32_t split_mode;         /* enum llama_split_mode */
    const float * tensor_split; /* NULL or one weight per device */
    int32_t n_tensor_split;
    const char * const * devices;   /* names of the devices that take layers, in this order; NULL for all that can */
    int32_t n_devices;
    const char * const * servers;   /* "host:port": their devices take layers too, before this machine's */
    int32_t n_servers;
    bool use_mmap, use_mlock, repack, vocab_only;
    bool load_mtp;              /* load the MTP head in the file, if it has one */
    llama_spec_progress progress;
    void * progress_user;
    const struct llama_spec_override * overrides;
    int32_t n_overrides;
};

struct llama_spec_model_info {
    const char * arch;
    int32_t n_vocab, n_embd, n_embd_inp, n_embd_out, n_layer, n_head, n_head_kv, n_ctx_train, n_swa;
    uint64_t n_params, size_bytes;
    bool has_encoder, has_decoder, is_recurrent, is_hybrid, is_diffusion, can_roll_back;
    int32_t n_device_layers;    /* layers with weights on a GPU or another machine; the output counts as one */
    int32_t n_target_layers;    /* for a draft: how many target layers it reads */
    int32_t n_heads;            /* MTP heads in the file, loaded or not */
    bool    has_head;           /* they are loaded: a context of the head can be opened */
    bool    is_head_alone;      /* the file has a head but no layers: it drafts for another file */
    uint64_t state_bytes;       /* recurrent state of a sequence, without snapshots; 0 if there is none */
    /* What rollbacks add to it for each sequence: once, and for each token that can be rolled back. */
    uint64_t snapshot_base_bytes, snapshot_token_bytes;
    uint64_t head_bytes;        /* weights of a loaded MTP head; 0 if none is loaded */
    const char * head_type;     /* the type of most of them */
    struct llama_spec_block block;
    uint64_t repacked_bytes;    /* weights that our kernels read 16 rows at a time, in memory of the process */
};

int  llama_spec_model_load(const char * path, const struct llama_spec_model_params * params, llama_spec_model ** out);
void llama_spec_model_free(llama_spec_model * model);
int  llama_spec_model_get_info(llama_spec_model * model, struct llama_spec_model_info * out);
/* How many MTP heads of an architecture this version can draft with: 0, 1, or the maximum number in a file. */
int32_t llama_spec_most_heads(const char * arch);
int  llama_spec_model_desc(llama_spec_model * model, char * buf, size_t size);
/* Where the weights lie: the i-th device with layers, and its number of layers, the output counted as one. name is NULL
 * past the last; a model loaded with vocab_only has none. */
int  llama_spec_model_device(llama_spec_model * model, int32_t i, const char ** name, int32_t * n_layers);
int  llama_spec_model_target_layers(llama_spec_model * model, int32_t * out);   /* [n_target_layers] */
/* OK if this draft was made for that target; otherwise ARGUMENT with the first difference. Opens no context. */
int  llama_spec_model_check_draft(llama_spec_model * draft, llama_spec_model * target);
/* Metadata as text; returns the length without the terminating zero, or a status. */
int32_t llama_spec_model_n_meta(llama_spec_model * model);
int32_t llama_spec_model_meta_key(llama_spec_model * model, int32_t i, char * buf, size_t size);
int32_t llama_spec_model_meta_value(llama_spec_model * model, int32_t i, char * buf, size_t size);
const char * llama_spec_model_chat_template(llama_spec_model * model, const char * name);
/* OK if the inputs of these layers (0 .. n_layer, or LLAMA_SPEC_HEAD_ROWS) are available; UNSUPPORTED names the missing
 * one. Keeps no context. */
int  llama_spec_model_probe_layers(llama_spec_model * model, const int32_t * layers, int32_t n_layers);

/* ---- vocab ---------------------------------------------------------------------------------------- */

/* Returns the number of ids written, or, if n_max is too small, the negative of the number needed; on failure INT32_MIN
 * less the status. */
int32_t llama_spec_tokenize(llama_spec_model * model, const char * text, int32_t n_bytes, int32_t * out, int32_t n_max,
                            bool add_special, bool parse_special);
/* Returns the bytes written, or the negative of the number needed; INT32_MIN for an id out of range. */
int32_t llama_spec_token_to_piece(llama_spec_model * model, int32_t id, char * buf, int32_t size, bool special);
bool    llama_spec_vocab_is_eog(llama_spec_model * model, int32_t id);
bool    llama_spec_vocab_is_control(llama_spec_model * model, int32_t id);
int32_t llama_spec_vocab_special(llama_spec_model * model, const char * name);  /* -1 if the vocab has none */
bool    llama_spec_vocab_adds_bos(llama_spec_model * model);
bool    llama_spec_vocab_adds_eos(llama_spec_model * model);
/* Says whether the model wants a separator between two texts that it reads together. */
bool    llama_spec_vocab_adds_sep(llama_spec_model * model);

/* ---- context -------------------------------------------------------------------------------------- */

struct llama_spec_context_params {
    uint32_t n_ctx, n_batch, n_ubatch, n_seq_max, n_rs_seq, n_outputs_max;
    int32_t  n_threads, n_threads_batch, flash_attn, type_k, type_v;   /* flash_attn: -1 auto, 0 off, 1 on */
    int32_t  rope_scaling_type, pooling_type;                          /* -1: from the model */
    int32_t  attention_type;                                           /* -1: from the model, 0 causal, 1 not */
    float    rope_freq_base, rope_freq_scale;                          /* 0: from the model */
    float    yarn_ext_factor, yarn_attn_factor, yarn_beta_fast, yarn_beta_slow;    /* < 0: from the model */
    uint32_t yarn_orig_ctx;                                            /* 0: from the model */
    bool     offload_kqv, swa_full, kv_unified, embeddings;
    bool     op_offload;        /* compute wide batches on a device even for layers in the host's memory */
    bool     is_head;           /* open the model's MTP head, as a draft for the model itself */
    const int32_t * layers;     /* keep the inputs of these layers at every decode */
    int32_t  n_layers;
};

struct llama_spec_context_info {
    uint32_t n_ctx, n_ctx_seq, n_batch, n_ubatch, n_seq_max, n_rs_seq;
    int32_t  n_threads;
    uint64_t memory_bytes;      /* memory of past tokens, on all devices */
    uint64_t n_host_copies;     /* how often a sequence's state was copied to or from the host */
    int32_t  n_graphs_reused;   /* batches that were computed with an earlier batch's graph */
    int32_t  n_candidates, n_draft_row; /* for a draft's context: maxima of llama_spec_draft_candidates() */
    int32_t  n_row;             /* the width of a batch's rows */
    bool     has_grid;          /* a row without an id has several positions, see llama_spec_batch.grid */
    int32_t  pooling_type;      /* enum llama_pooling_type of its embeddings */
    bool     has_memory;        /* keeps past tokens; otherwise batches are encoded */
};

/* `target` is NULL, or the target's context that a draft context reads from and shares threads with. */
int  llama_spec_context_new(llama_spec_model * model, const struct llama_spec_context_params * params,
                            llama_spec_context * target, llama_spec_context ** out);
/* BUSY, and nothing is freed, if another thread is inside a call on it. */
int  llama_spec_context_free(llama_spec_context * ctx);
int  llama_spec_context_get_info(llama_spec_context * ctx, struct llama_spec_context_info * out);

/* Limits the host memory for past tokens: n_bytes for each context; 0 for the host's free memory. Opening a context
 * that needs more fails with LLAMA_SPEC_MEMORY. */
void llama_spec_limit_memory(uint64_t n_bytes);
/* Ends another thread's running decode at the engine's next check; until cleared, later decodes end at once. */
void llama_spec_cancel(llama_spec_context * ctx, bool value);
/* Puts the threads to sleep until the next decode; otherwise they poll for some milliseconds first. */
int  llama_spec_rest(llama_spec_context * ctx);
/* Adds n (which may be negative) to the number of NumPy views of the context's output, and returns the sum. Buffers
 * with views stay allocated. Thread-safe, also during a decode. */
int64_t llama_spec_add_views(llama_spec_context * ctx, int32_t n);

/* FULL leaves the memory unchanged. After ENGINE or CANCELLED, read the positions again. */
int llama_spec_decode(llama_spec_context * ctx, const struct llama_spec_batch * batch, bool encode);
int llama_spec_synchronize(llama_spec_context * ctx);
/* The row of token i of the last batch: [n_vocab], [n_embd_out]. Valid until the next decode. */
int llama_spec_logits(llama_spec_context * ctx, int32_t i, const float ** out);
int llama_spec_embeddings(llama_spec_context * ctx, int32_t i, const float ** out);
/* The pooled row of a sequence of the last batch: [n_embd_out]. */
int llama_spec_embeddings_seq(llama_spec_context * ctx, int32_t seq, const float ** out);
/* For a draft: its proposals for token i of the last batch, likeliest first: at most n_max ids of the target, with
 * their probabilities in the draft's own distribution. `given` is the token chosen for token i - 1; -1 if there is
 * none, or if the draft does not use it. *row is [n_draft_row], valid until the next decode. EAGLE-3 and an MTP head
 * give the hidden row to feed with the chosen token; DFlash gives its confidence head's value, 0 .. 1. */
int llama_spec_draft_candidates(llama_spec_context * ctx, int32_t i, int32_t given, int32_t n_max, int32_t * ids,
                                float * probabilities, int32_t * n, const float ** row);
/* For the context of a draft or a small model: restricts its choice to n_slots ids of the vocabulary; the caller then sets each slot's row of
 * the output matrix. 0 restores all ids. Every slot has to be set before the first decode with them. `name`,
 * `row_bytes` and `is_targets`: the matrix's name in its file, the length of a row, and whether the file is the
 * target's. LLAMA_SPEC_UNSUPPORTED if each head has its own matrix, if the draft knows only a part of the vocabulary,
 * or if the matrix lies on a device. */
int llama_spec_draft_output(llama_spec_context * ctx, int32_t n_slots, const char ** name, uint64_t * row_bytes,
                            bool * is_targets);
/* rows: [n, row_bytes], as stored in the file, n_bytes in all. */
int llama_spec_draft_output_set(llama_spec_context * ctx, int32_t n, const int32_t * slots, const int32_t * ids, const uint8_t * rows,
                                uint64_t n_bytes);
/* For any model: the likeliest tokens at row i of the last batch, at most n_max and at most two, with their
 * probabilities among all tokens. counterparts: NULL, or [n_vocab]; ids with a negative entry are not chosen. NaN
 * anywhere in the row makes the probabilities NaN. */
int llama_spec_likeliest(llama_spec_context * ctx, int32_t i, const int32_t * counterparts, int32_t n_max, int32_t * ids,
                         float * probabilities, int32_t * n);
/* Extends drafts by one token per decode: chain k begins with ids[k] at pos[k]. After each decode, `next` gets each
 * chain's likeliest next token and its probability, as from llama_spec_likeliest(), or -1 for none. It returns whether
 * the chain continues with that token. The call returns when no chain continues. */
typedef bool (*llama_spec_next)(void * user, int32_t chain, int32_t id, float p);
struct llama_spec_chains {
    int32_t n;
    const int32_t * ids, * pos, * seq;  /* [n] */
    const int32_t * counterparts;       /* as for llama_spec_likeliest() */
};
int llama_spec_draft_chains(llama_spec_context * ctx, const struct llama_spec_chains * chains, llama_spec_next next, void * user);
/* All rows of the last batch, in its order: [n_rows, n_embd]; for LLAMA_SPEC_HEAD_ROWS [n_rows, n_embd_out]. Waits for
 * the engine first. */
int llama_get_output_layer_inp(llama_spec_context * ctx, int32_t layer, const float ** out, int32_t * n_rows);
/* Copies the inputs of some layers, side by side, for n rows of the last batch: out is [n, sum of their widths]. */
int llama_spec_copy_layer_inputs(llama_spec_context * ctx, const int32_t * layers, int32_t n_layers, int32_t first, int32_t n,
                                 float * out);

/* ---- media ---------------------------------------------------------------------------------------- */

/* The second file of a model that sees or hears: it computes rows of images or sounds, which the model reads in the
 * place of tokens. One thread at a time. */
typedef struct llama_spec_projector llama_spec_projector;
/* An image or a sound as a model reads it: runs of tokens and of rows, in turn. */
typedef struct llama_spec_media     llama_spec_media;

struct llama_spec_projector_params {
    bool    use_gpu;
    int32_t n_threads;
    int32_t image_min_tokens, image_max_tokens;     /* <= 0: from the file */
};

struct llama_spec_media_part {
    int32_t n_rows;
    int32_t n_positions;            /* what it takes of the sequence: all rows of an image may share a position */
    const int32_t * ids;            /* [n_rows] a run of tokens; NULL for rows */
    bool    is_whole;               /* to be decoded with llama_spec_batch.is_whole */
};

/* It keeps the model alive. The caller has checked the keys of the file. */
int  llama_spec_projector_load(llama_spec_model * model, const char * path, const struct llama_spec_projector_params * params,
                               llama_spec_projector ** out);
void llama_spec_projector_free(llama_spec_projector * projector);
/* Ends another thread's running call; until cleared, later ones end at once. */
void llama_spec_projector_cancel(llama_spec_projector * projector, bool value);
/* Scales and cuts an image, rgb: [height, width, 3]. Computes no rows yet. It keeps the projector alive. */
int  llama_spec_media_image(llama_spec_projector * projector, const uint8_t * rgb, int32_t width, int32_t height,
                            llama_spec_media ** out);
/* Whether it takes images; the samples of a second of a sound, 0 if it takes none. */
bool    llama_spec_projector_sees(llama_spec_projector * projector);
int32_t llama_spec_projector_rate(llama_spec_projector * projector);
/* See csrc/abi/sound.h. */
int64_t llama_spec_sound(const uint8_t * data, uint64_t n_bytes, int32_t rate, float * out, int64_t n_max);
/* The same of a sound, samples: [n], one channel. */
int  llama_spec_media_sound(llama_spec_projector * projector, const float * samples, int32_t n, llama_spec_media ** out);
void llama_spec_media_free(llama_spec_media * media);
int32_t llama_spec_media_n_parts(llama_spec_media * media);
int  llama_spec_media_get_part(llama_spec_media * media, int32_t i, struct llama_spec_media_part * out);
/* Positions of the rows of part i, less that of the part: in time, row, column: out is [3, n_rows]. */
int  llama_spec_media_positions(llama_spec_media * media, int32_t i, int32_t * out);
/* Computes the rows of part i: out is [n_rows, n_embd_inp]. */
int  llama_spec_media_encode(llama_spec_media * media, int32_t i, float * out);

/* ---- adapters ------------------------------------------------------------------------------------- */

typedef struct llama_spec_adapter llama_spec_adapter;

/* Loads a LoRA file made for this model. It is freed with the model, which the handle keeps alive. */
int  llama_spec_adapter_load(llama_spec_model * model, const char * path, llama_spec_adapter ** out);
void llama_spec_adapter_free(llama_spec_adapter * adapter);
/* Enables exactly these adapters from the next decode on; tokens already in the memory were computed without them. */
int  llama_spec_set_adapters(llama_spec_context * ctx, llama_spec_adapter ** adapters, const float * scales, int32_t n);

/* ---- memory --------------------------------------------------------------------------------------- */

/* Ranges are [p0, p1); p1 < 0 means to the end. seq_rm: UNSUPPORTED if a part alone cannot be removed. */
int llama_spec_memory_clear(llama_spec_context * ctx);
int llama_spec_seq_rm(llama_spec_context * ctx, int32_t seq, int32_t p0, int32_t p1);
int llama_spec_seq_cp(llama_spec_context * ctx, int32_t from, int32_t to);
int llama_spec_seq_positions(llama_spec_context * ctx, int32_t seq, int32_t * first, int32_t * last);
/* The version of the engine's state format; it accepts no other. */
int32_t llama_spec_state_version(void);
/* partial: only what cannot be cut by position, such as a recurrent state. back: the state that many tokens earlier,
 * for recurrent states only; UNSUPPORTED if a rollback could not reach it. */
int llama_spec_state_size(llama_spec_context * ctx, int32_t seq, bool partial, size_t * out);
int llama_spec_state_get(llama_spec_context * ctx, int32_t seq, bool partial, int32_t back, uint8_t * data, size_t size, size_t * written);
int llama_spec_state_set(llama_spec_context * ctx, int32_t seq, bool partial, const uint8_t * data, size_t size);

/* ---- sampling ------------------------------------------------------------------------------------- */

struct llama_spec_sampler_params {
    float    temperature, top_p, min_p, typical_p, top_n_sigma, xtc_probability, xtc_threshold;
    int32_t  top_k, min_keep;
    int32_t  penalty_last_n;
    float    repeat_penalty, frequency_penalty, presence_penalty;
    float    dry_multiplier, dry_base;
    int32_t  dry_allowed_length, dry_penalty_last_n;
    const char ** dry_breakers;
    int32_t  n_dry_breakers;
    int32_t  mirostat;
    float    mirostat_tau, mirostat_eta;
    uint32_t seed;
    bool     shared_noise;      /* the last draw uses only llama_spec_shared_noise() */
    const int32_t * bias_ids;
    const float   * bias;
    int32_t  n_bias;
    const char * grammar;       /* GBNF, or NULL */
    const char ** grammar_triggers; /* patterns; with any pattern or trigger token, the grammar waits for one */
    int32_t  n_grammar_triggers;
    const int32_t * trigger_tokens;
    int32_t  n_trigger_tokens;
    const int32_t * grammar_prefill;    /* ids that a grammar without triggers has accepted already */
    int32_t  n_grammar_prefill;
    int32_t  min_tokens;            /* before that many, no end token and none of stop_ids may come */
    bool     ignore_ends;           /* end tokens are forbidden */
    const int32_t * stop_ids;
    int32_t  n_stop_ids;
    const char * thought_start;     /* the tags of a thought, with the names of control tokens; NULL for none */
    const char ** thought_ends;
    int32_t  n_thought_ends;
    bool     thought_is_open;       /* the end of the prompt opens a thought */
    int32_t  thought_budget;        /* maximum number of tokens in all thoughts; negative for no limit */
    const int32_t * thought_close;  /* what follows when the budget is used up */
    int32_t  n_thought_close;
    bool     grammar_skips_thoughts; /* the grammar ignores the text of thoughts */
};

int  llama_spec_sampler_new(llama_spec_model * model, const struct llama_spec_sampler_params * params,
                            llama_spec_sampler ** out);
void llama_spec_sampler_free(llama_spec_sampler * sampler);
int  llama_spec_sampler_clone(llama_spec_sampler * sampler, llama_spec_sampler ** out);
/* Draws a token from the row of token i of the last batch, without advancing penalties or grammar. */
int  llama_spec_sample(llama_spec_sampler * sampler, llama_spec_context * ctx, int32_t i, int32_t * id);
/* The same for a row of the caller's: [n_vocab] float32. */
int  llama_spec_sample_row(llama_spec_sampler * sampler, const float * logits, int32_t n_vocab, int32_t * id);
/* The distribution from which sample() would draw: the ids that the chain leaves, in its order, with their logits after
 * the whole chain, temperature included; their softmax is the distribution. ids, logits: [n_vocab]. It uses up the chain's
 * random numbers like sample(). Not for greedy sampling, mirostat and grammars. */
int  llama_spec_candidates(llama_spec_sampler * sampler, llama_spec_context * ctx, int32_t i, int32_t * ids, float * logits,
                           int32_t * n);
/* Alternates sample() and accept() at rows row, row + 1 ... of the last batch, while the drawn tokens equal draft[0],
 * draft[1] ... It ends with the first token that differs, that follows the whole draft, or that ends a generation. out:
 * [n_draft + 1]. After a failure at a later row, out and n_out hold the tokens accepted before it. */
int  llama_spec_sample_chain(llama_spec_sampler * sampler, llama_spec_context * ctx, int32_t row, const int32_t * draft,
                             int32_t n_draft, int32_t * out, int32_t * n_out);
/* The text that the grammar forces, at most `size` bytes of UTF-8. Returns the number of bytes, 0 if there is a choice,
 * or a status. Advances nothing. A grammar that waits for its trigger forces none. */
int32_t llama_spec_sampler_forced(llama_spec_sampler * sampler, char * buf, int32_t size);
/* How many generated tokens it has accepted. */
int64_t llama_spec_sampler_place(llama_spec_sampler * sampler);
/* Gumbel noise of ids at a position of an answer. With shared_noise, the token with the largest sum of logit and noise
 * is drawn: a draft that adds the same noise often draws the same. out: [n]. */
void llama_spec_shared_noise(uint32_t seed, int64_t place, const int32_t * ids, int32_t n, double * out);
/* Advances penalties, grammar and the rest by a committed token. */
int  llama_spec_sampler_accept(llama_spec_sampler * sampler, int32_t id, bool is_generated);

/* ---- chats ---------------------------------------------------------------------------------------- */

/* Returned texts are zero-terminated UTF-8; free them with llama_spec_text_free(). */
void llama_spec_text_free(char * text);

/* A Jinja text as a program. strings: {all, compared}, the template's string literals, and those of them that it does
 * not only print. */
typedef struct llama_spec_template     llama_spec_template;
int  llama_spec_template_new(const char * source, llama_spec_template ** out, char ** strings);
void llama_spec_template_free(llama_spec_template * program);
/* variables: a JSON object, what the template reads. time: what strftime_now() shows, in seconds since 1970. text: a
 * JSON string. ARGUMENT: the template fails, or refuses by raise_exception(). */
int  llama_spec_template_run(llama_spec_template * program, const char * variables, int64_t time, char ** text);

typedef struct llama_spec_chat         llama_spec_chat;
typedef struct llama_spec_chat_session llama_spec_chat_session;

/* The model's chat template, or the given one, as the engine's own server reads it. It keeps the model alive. */
int  llama_spec_chat_new(llama_spec_model * model, const char * source, llama_spec_chat ** out);
void llama_spec_chat_free(llama_spec_chat * chat);
/* request: {messages, tools, tool_choice ("auto", "none", "required"), parallel_tool_calls, json_schema, grammar,
 * reasoning_format ("none", "auto", "deepseek"), add_generation_prompt, continue_final_message (true, "content",
 * "reasoning_content": the last message begins the answer), variables, schema_rules}; only messages is required.
 * schema_rules: [{schema, rules, properties: {name: rules}}], GBNF that replaces the engine's rules for a schema.
 * answer: {prompt, format, grammar, grammar_lazy, trigger_patterns, trigger_tokens, prefill, stops, generation_prompt,
 * supports_thinking, thinking_start, thinking_ends, preserved_tokens, object_arguments, has_call_ids}. The session
 * parses the model's answer to that prompt. */
int  llama_spec_chat_begin(llama_spec_chat * chat, const char * request, llama_spec_chat_session ** out, char ** answer);
void llama_spec_chat_session_free(llama_spec_chat_session * session);
/* text: the model's output so far, with the names of preserved_tokens but of no other control token. answer: {content,
 * reasoning_content, tool_calls: [{name, arguments, id}], is_whole, n_told}. is_whole: nothing is missing and nothing
 * follows. n_told: bytes of the text up to the last one that is in any of the three. UNSUPPORTED: the template's parser
 * does not expect this text. Two threads must not use one session at once. */
int  llama_spec_chat_parse(llama_spec_chat_session * session, const char * text, int32_t n_bytes, char ** answer);

/* ---- quantize ------------------------------------------------------------------------------------- */

int llama_spec_quantize(const char * path, const char * out_path, const char * type, int32_t n_threads, bool pure);
/* The name of the i-th type that quantize accepts; NULL past the last. */
const char * llama_spec_quantize_type(int32_t i);
/* cdef end */

#ifdef __cplusplus
}
#endif

#endif
