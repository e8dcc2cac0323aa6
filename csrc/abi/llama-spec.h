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
 * The part between the two markers is read by csrc/ffi_build.py as the cffi declaration, behind that of
 * base/abi_types.h, whose types the floors below csrc/abi/ use as well.
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
/* Which of our kernels for the few rows of a verify batch this build has on the CPU, by type of the weights, as in
 * "BF16 AVX2, F16 AVX2"; empty where the engine's own run. */
const char * llama_spec_row_kernels(void);
/* For comparisons, on this thread: whether decodes are left to the engine's own kernels, as if there were none of ours.
 * Rows are not equal to single ones then. */
void llama_spec_set_stock_kernels(bool are_stock);
/* For comparisons, on this thread: whether all of a context's threads compute, even where other programs use the cores
 * and fewer are faster. */
void llama_spec_set_all_threads(bool are_all);
/* For the end of the process, before static data goes away under a thread that computes: stops the decodes and
 * loads of all threads, refuses new decodes, and waits until no thread is inside a call, or for the timeout. */
void llama_spec_shutdown(int32_t timeout_ms);
/* In a forked child, before any other call: the parent's other threads, and the calls they were in, are not there.
 * Handles of the parent are refused from here on (LLAMA_SPEC_FORKED), but for what only reads a vocabulary or a
 * model's facts; freeing one leaks it. The child may open its own. */
void llama_spec_after_fork(void);
/* How many forks lie behind this process. */
int32_t llama_spec_fork_generation(void);
/* Lines at or above `level` (1 debug .. 4 error, 5 none) are printed to stderr. */
void llama_spec_set_log_level(int level);
/* The same for what this thread makes the engine do, whatever the process's level is; -1 follows that one again.
 * Returns what was set before. */
int llama_spec_set_thread_log_level(int level);

/* Asked now and then on a thread in one of the engine's long loops, or waiting for a server: true cancels the call. */
void llama_spec_on_wait(bool (*wants_to_stop)(void));

/* The engine's number for a type of numbers, such as "f16" or "q8_0"; a status for a name that it does not know. */
int32_t llama_spec_type_id(const char * name);

int32_t llama_spec_n_devices(void);
int     llama_spec_device(int32_t i, const char ** name, const char ** description,
                          uint64_t * free_bytes, uint64_t * total_bytes);
/* A backend of this build, the CPU among them, with how many devices it finds; *name is NULL behind the last one. */
int     llama_spec_backend(int32_t i, const char ** name, int32_t * n_devices);
/* Whether there is a GPU, or a server of another machine, that could take layers. */
bool    llama_spec_supports_gpu(void);

/* ---- servers of layers: other processes, on this machine or on others, at "host:port". docs/rpc.md */

/* Whether this build has them (GGML_RPC). */
bool llama_spec_has_rpc(void);
/* How long an answer may take on connections that are opened from now on. */
void llama_spec_set_server_timeout(int32_t seconds);
/* The i-th device of a server; name is NULL past the last. */
int  llama_spec_server_device(const char * endpoint, int32_t i, const char ** name, uint64_t * free_bytes, uint64_t * total_bytes);
/* Serves the client at the other end of a connected socket until it goes, with the named devices of this machine, or with
 * its GPUs, or with its CPU. A client that is silent for timeout_s within a message has gone. Closes the socket. */
int  llama_spec_serve(int32_t fd, const char * const * devices, int32_t n_devices, int32_t n_threads, int32_t timeout_s);

/* ---- model ---------------------------------------------------------------------------------------- */

typedef bool (*llama_spec_progress)(float fraction, void * user);

/* A key of the file with another value; kind: 0 an integer, 1 a number, 2 a bool, 3 a text of at most 127 bytes. */
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
    const char * const * devices;   /* names of those that take layers, in this order; NULL for all that can */
    int32_t n_devices;
    const char * const * servers;   /* "host:port": their devices take layers too, before this machine's */
    int32_t n_servers;
    bool use_mmap, use_mlock, use_extra_bufts, check_tensors, vocab_only;
    bool load_mtp;              /* with the MTP head that lies in the file, if one does */
    llama_spec_progress progress;
    void * progress_user;
    const struct llama_spec_override * overrides;
    int32_t n_overrides;
};

struct llama_spec_model_info {
    int32_t n_vocab, n_embd, n_embd_inp, n_embd_out, n_layer, n_head, n_head_kv, n_ctx_train, n_swa, vocab_type;
    uint64_t n_params, size_bytes;
    bool has_encoder, has_decoder, is_recurrent, is_hybrid, is_diffusion, can_roll_back;
    int32_t n_device_layers;    /* the layers, the output as one, whose weights lie on a GPU or another machine */
    int32_t n_target_layers;    /* of a draft: how many target layers it reads */
    int32_t n_heads;            /* MTP heads that the file says it has, loaded or not */
    bool    has_head;           /* they were loaded: a context of the head can be opened */
    bool    is_head_alone;      /* the file has a head and no layers: it drafts for another one */
    uint64_t state_bytes;       /* of the recurrent state of a sequence, without snapshots; 0 where there is none */
    /* What rollbacks add to it for each sequence: once, and for each token that can be taken back. */
    uint64_t snapshot_base_bytes, snapshot_token_bytes;
};

int  llama_spec_model_load(const char * path, const struct llama_spec_model_params * params, llama_spec_model ** out);
void llama_spec_model_free(llama_spec_model * model);
int  llama_spec_model_get_info(llama_spec_model * model, struct llama_spec_model_info * out);
const char * llama_spec_model_arch(llama_spec_model * model);
/* Of a loaded MTP head: its weights, the type that most of them are of, and the bits of one of those. NULL and zeros
 * where none is loaded. */
int  llama_spec_model_get_head(llama_spec_model * model, uint64_t * n_bytes, const char ** type, double * bits);
/* With how many MTP heads of an architecture this version drafts: 0, 1, or as many as a file can have. */
int32_t llama_spec_most_heads(const char * arch);
int  llama_spec_model_desc(llama_spec_model * model, char * buf, size_t size);
/* Where the weights lie: the i-th device with layers, and how many it has, the output counted as one. name is NULL past
 * the last; a vocabulary alone has none. */
int  llama_spec_model_device(llama_spec_model * model, int32_t i, const char ** name, int32_t * n_layers);
int  llama_spec_model_target_layers(llama_spec_model * model, int32_t * out, int32_t n_max);
/* OK if this draft was made for that target; ARGUMENT with the first difference if not. Makes no context. */
int  llama_spec_model_check_draft(llama_spec_model * draft, llama_spec_model * target);
/* Of a draft with an n-gram table. n is 0 for a model without one. */
int  llama_spec_model_get_ngrams(llama_spec_model * model, struct llama_spec_ngrams * out);
/* Of a draft that guesses the tokens of a block at once. */
int  llama_spec_model_get_block(llama_spec_model * model, struct llama_spec_block * out);
/* Metadata as text; the return value is the length without the terminating zero, or a status. */
int32_t llama_spec_model_n_meta(llama_spec_model * model);
int32_t llama_spec_model_meta_key(llama_spec_model * model, int32_t i, char * buf, size_t size);
int32_t llama_spec_model_meta_value(llama_spec_model * model, int32_t i, char * buf, size_t size);
const char * llama_spec_model_chat_template(llama_spec_model * model, const char * name);
/* OK if the inputs of these layers (0 .. n_layer, or LLAMA_SPEC_HEAD_ROWS) can be taken; UNSUPPORTED names what cannot.
 * No context is kept. */
int  llama_spec_model_probe_layers(llama_spec_model * model, const int32_t * layers, int32_t n_layers);

/* ---- vocab ---------------------------------------------------------------------------------------- */

/* The number of ids written, or, if n_max is too small, the negative of the number needed; INT32_MIN less the status
 * where it fails. */
int32_t llama_spec_tokenize(llama_spec_model * model, const char * text, int32_t n_bytes, int32_t * out, int32_t n_max,
                            bool add_special, bool parse_special);
/* Bytes written, or the negative of the number needed; INT32_MIN for an id that is out of range. */
int32_t llama_spec_token_to_piece(llama_spec_model * model, int32_t id, char * buf, int32_t size, bool special);
bool    llama_spec_vocab_is_eog(llama_spec_model * model, int32_t id);
bool    llama_spec_vocab_is_control(llama_spec_model * model, int32_t id);
int32_t llama_spec_vocab_special(llama_spec_model * model, const char * name);  /* -1 if the vocab has none */
bool    llama_spec_vocab_adds_bos(llama_spec_model * model);
bool    llama_spec_vocab_adds_eos(llama_spec_model * model);
/* Whether the model wants a separator between two texts that it reads together. */
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
    bool     op_offload;        /* wide batches of layers in the host's memory are computed on a device too */
    bool     is_head;           /* of the model's MTP head, a draft of the model itself */
    const int32_t * layers;     /* inputs of these layers are kept at every decode */
    int32_t  n_layers;
};

struct llama_spec_context_info {
    uint32_t n_ctx, n_ctx_seq, n_batch, n_ubatch, n_seq_max, n_rs_seq, n_outputs_max;
    int32_t  n_threads;
    uint64_t memory_bytes;      /* of its memory of past tokens, on all devices */
    uint64_t n_host_copies;     /* how often a sequence's state went to the host, or came from there */
    int32_t  n_graphs_reused;   /* batches that were computed with the graph of an earlier one */
    int64_t  n_graphs;          /* that more than one thread could compute, of it and of those that share its threads */
    int64_t  n_with_fewer;      /* of these, the ones that fewer than all threads computed */
    int32_t  n_candidates, n_draft_row; /* of a draft's context: what llama_spec_draft_candidates() gives at most */
    int32_t  pooling_type;      /* enum llama_pooling_type of its embeddings */
    bool     has_memory;        /* of past tokens; without, batches are encoded */
};

/* `target` is NULL, or the target's context that a draft context reads from and shares threads with. */
int  llama_spec_context_new(llama_spec_model * model, const struct llama_spec_context_params * params,
                            llama_spec_context * target, llama_spec_context ** out);
/* BUSY if another thread is inside a call on it; then nothing is freed. */
int  llama_spec_context_free(llama_spec_context * ctx);
int  llama_spec_context_get_info(llama_spec_context * ctx, struct llama_spec_context_info * out);
void llama_spec_context_default_params(struct llama_spec_context_params * out);

/* What crossed between the host and devices in all calls on a context so far; all 0 where everything lies on the CPU. */
struct llama_spec_transfers {
    uint64_t bytes_to_device, bytes_to_host, bytes_between;     /* between: from one device to another by themselves */
    uint64_t n_to_device, n_to_host, n_between;                 /* copies */
    uint64_t n_synchronisations;    /* the host waited for a device; a copy that waits for itself is none */
    uint64_t n_graphs;              /* handed to a device to compute */
};
/* with_relatives: and on those that share its threads: a target with its drafts. Thread-safe, also during a decode. */
int  llama_spec_get_transfers(llama_spec_context * ctx, bool with_relatives, struct llama_spec_transfers * out);
/* Opening a context whose memory of past tokens does not fit the host's is a LLAMA_SPEC_MEMORY: the host's free memory,
 * or here at most so many bytes for each context; 0 for what is free. */
void llama_spec_limit_memory(uint64_t n_bytes);
/* Ends a decode that runs in another thread as soon as the engine looks; until cleared, later ones end at once. */
void llama_spec_cancel(llama_spec_context * ctx, bool value);
/* Sends the threads to sleep until the next decode; left alone they first poll for some milliseconds. */
int  llama_spec_rest(llama_spec_context * ctx);
/* So many NumPy views more, or fewer, point into the context's output: buffers they point into are kept. Returns how
 * many there are. Thread-safe, also during a decode. */
int64_t llama_spec_add_views(llama_spec_context * ctx, int32_t n);

/* FULL leaves the memory as it was. After ENGINE or CANCELLED read the positions. */
int llama_spec_decode(llama_spec_context * ctx, const struct llama_spec_batch * batch, bool encode);
int llama_spec_synchronize(llama_spec_context * ctx);
/* Row of token i of the last batch: [n_vocab], [n_embd_out]. Valid until the next decode. */
int llama_spec_logits(llama_spec_context * ctx, int32_t i, const float ** out);
int llama_spec_embeddings(llama_spec_context * ctx, int32_t i, const float ** out);
/* One row for a sequence of the last batch, where the context pools: [n_embd_out]. */
int llama_spec_embeddings_seq(llama_spec_context * ctx, int32_t seq, const float ** out);
/* Of a draft: what it proposes for token i of the last batch, likeliest first: at most n_max ids of the target, and
 * their probabilities in the draft's own distribution, given the token that was chosen for token i - 1 (-1 where there
 * is none, or where the draft does not look back). And a row of [n_draft_row], valid until the next decode: of EAGLE-3
 * and an MTP head the hidden row to feed with whichever is chosen, of DFlash how sure its confidence head is, 0 .. 1. */
int llama_spec_draft_candidates(llama_spec_context * ctx, int32_t i, int32_t given, int32_t n_max, int32_t * ids,
                                float * probabilities, int32_t * n, const float ** row);
/* Of a draft's context: lets it choose among n_slots ids of the vocabulary, whose rows of the output matrix are put in
 * one by one; 0 for all ids again. Before the first decode with them every slot has to be set. `name`, `row_bytes` and
 * `is_targets`: the matrix's in its file, how long a row of it is, and whether the file is the target's.
 * LLAMA_SPEC_UNSUPPORTED where heads have a matrix each, the draft knows a part of the vocabulary alone, or the matrix
 * lies on a device. */
int llama_spec_draft_output(llama_spec_context * ctx, int32_t n_slots, const char ** name, uint64_t * row_bytes,
                            bool * is_targets);
/* rows: [n, row_bytes], as they lie in the file, n_bytes in all. */
int llama_spec_draft_output_set(llama_spec_context * ctx, int32_t n, const int32_t * slots, const int32_t * ids, const uint8_t * rows,
                                uint64_t n_bytes);
/* Of any model: the likeliest tokens at row i of the last batch, at most n_max and no more than two, with their
 * probabilities among all. counterparts: NULL, or [n_vocab]; ids whose entry is negative are not chosen. NaN anywhere in
 * the row makes them NaN. */
int llama_spec_likeliest(llama_spec_context * ctx, int32_t i, const int32_t * counterparts, int32_t n_max, int32_t * ids,
                         float * probabilities, int32_t * n);
/* Drafts that go on, each by a token per decode: chain k is fed ids[k] at pos[k] first. Behind each decode `next` is told
 * of each chain in it the likeliest token that follows, and its probability, as of llama_spec_likeliest(): -1 for none. It
 * says whether the chain goes on with that token. The call returns when no chain does. */
typedef bool (*llama_spec_next)(void * user, int32_t chain, int32_t id, float p);
struct llama_spec_chains {
    int32_t n;
    const int32_t * ids, * pos, * seq;  /* [n] */
    const int32_t * counterparts;       /* as of llama_spec_likeliest() */
};
int llama_spec_draft_chains(llama_spec_context * ctx, const struct llama_spec_chains * chains, llama_spec_next next, void * user);
/* All rows of the last batch, in its order: [n_rows, n_embd], of LLAMA_SPEC_HEAD_ROWS [n_rows, n_embd_out]. Waits for
 * the engine first. */
int llama_get_output_layer_inp(llama_spec_context * ctx, int32_t layer, const float ** out, int32_t * n_rows);
/* Copies the inputs of some layers, side by side, of n rows of the last batch: out is [n, sum of their
 * widths]. */
int llama_spec_copy_layer_inputs(llama_spec_context * ctx, const int32_t * layers, int32_t n_layers, int32_t first, int32_t n,
                                 float * out);

/* ---- adapters ------------------------------------------------------------------------------------- */

typedef struct llama_spec_adapter llama_spec_adapter;

/* A LoRA file made for this model. It is freed with the model, which the handle keeps. */
int  llama_spec_adapter_load(llama_spec_model * model, const char * path, llama_spec_adapter ** out);
void llama_spec_adapter_free(llama_spec_adapter * adapter);
/* These, and no others, count from the next decode on; what the memory holds already was computed without them. */
int  llama_spec_set_adapters(llama_spec_context * ctx, llama_spec_adapter ** adapters, const float * scales, int32_t n);

/* ---- memory --------------------------------------------------------------------------------------- */

/* Ranges are [p0, p1); p1 < 0 means to the end. seq_rm: UNSUPPORTED if only a part cannot be removed. */
int llama_spec_memory_clear(llama_spec_context * ctx);
int llama_spec_seq_rm(llama_spec_context * ctx, int32_t seq, int32_t p0, int32_t p1);
int llama_spec_seq_cp(llama_spec_context * ctx, int32_t from, int32_t to, int32_t p0, int32_t p1);
int llama_spec_seq_keep(llama_spec_context * ctx, int32_t seq);
int llama_spec_seq_positions(llama_spec_context * ctx, int32_t seq, int32_t * first, int32_t * last);
/* The number of the form that the engine gives states in; it takes no other. */
int32_t llama_spec_state_version(void);
/* partial: what cannot be cut by position alone, such as a recurrent state. back: as it was so many tokens earlier, of
 * a recurrent state alone; UNSUPPORTED where a rollback could not go there. */
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
    bool     shared_noise;      /* the last draw is by llama_spec_shared_noise(), and by nothing else */
    const int32_t * bias_ids;
    const float   * bias;
    int32_t  n_bias;
    const char * grammar;       /* GBNF, or NULL */
    const char * grammar_root;
    const char ** grammar_triggers; /* patterns; with any, or with any trigger token, the grammar waits for one of them */
    int32_t  n_grammar_triggers;
    const int32_t * trigger_tokens;
    int32_t  n_trigger_tokens;
    const int32_t * grammar_prefill;    /* ids that a grammar which does not wait has seen already */
    int32_t  n_grammar_prefill;
    int32_t  min_tokens;            /* before so many neither an end token nor one of stop_ids may come */
    bool     ignore_ends;           /* no end token may come at all */
    const int32_t * stop_ids;
    int32_t  n_stop_ids;
    const char ** bad_words;        /* texts that may not stand in the answer */
    int32_t  n_bad_words;
    const char * thought_start;     /* the tags of a thought, with the names of control tokens; NULL for none */
    const char ** thought_ends;
    int32_t  n_thought_ends;
    bool     thought_is_open;       /* the prompt's end has begun one */
    int32_t  thought_budget;        /* the most tokens in all thoughts; negative for any number */
    const int32_t * thought_close;  /* what comes where the budget ends */
    int32_t  n_thought_close;
    bool     grammar_skips_thoughts; /* the grammar is of what comes outside of them */
};

int  llama_spec_sampler_new(llama_spec_model * model, const struct llama_spec_sampler_params * params,
                            llama_spec_sampler ** out);
void llama_spec_sampler_free(llama_spec_sampler * sampler);
int  llama_spec_sampler_clone(llama_spec_sampler * sampler, llama_spec_sampler ** out);
int  llama_spec_sampler_reset(llama_spec_sampler * sampler);
/* Draws a token from the row of token i of the last batch, without advancing penalties or grammar. */
int  llama_spec_sample(llama_spec_sampler * sampler, llama_spec_context * ctx, int32_t i, int32_t * id);
/* The same from a row of the caller's: [n_vocab] float32. */
int  llama_spec_sample_row(llama_spec_sampler * sampler, const float * logits, int32_t n_vocab, int32_t * id);
/* What sample() would draw from: the ids that the chain leaves, in its order, with their logits behind all of it, the
 * temperature too; their softmax is the distribution. n_max: room in ids and logits. It takes the chain's random numbers as
 * sample() does. Not for greedy sampling, mirostat and grammars. */
int  llama_spec_candidates(llama_spec_sampler * sampler, llama_spec_context * ctx, int32_t i, int32_t * ids, float * logits,
                           int32_t n_max, int32_t * n);
/* sample() and accept() in turns, at rows row, row + 1 ... of the last batch, for as long as what was drawn equals
 * draft[0], draft[1] ...; it ends with the first token that differs, that comes after the whole draft, or that ends
 * a generation. out: [n_draft + 1]. After a failure at a later row, out and n_out have what was accepted before it. */
int  llama_spec_sample_chain(llama_spec_sampler * sampler, llama_spec_context * ctx, int32_t row, const int32_t * draft,
                             int32_t n_draft, int32_t * out, int32_t * n_out);
/* The text that the grammar leaves no choice about, at most `size` bytes of UTF-8; how many they are, 0 where there is a
 * choice, or a status. Nothing is advanced. A grammar that waits for its beginning has none. */
int32_t llama_spec_sampler_forced(llama_spec_sampler * sampler, char * buf, int32_t size);
/* Whether the answer is inside of a thought whose tokens are none of the grammar's. */
bool llama_spec_sampler_skips_grammar(llama_spec_sampler * sampler);
/* How many tokens it has accepted as generated. */
int64_t llama_spec_sampler_place(llama_spec_sampler * sampler);
/* Gumbel noise of ids at a place of an answer. With shared_noise the token at a place is the one with the largest sum of its
 * logit and its noise: a draft that adds the same noise often draws the same. out: [n]. */
int  llama_spec_shared_noise(uint32_t seed, int64_t place, const int32_t * ids, int32_t n, double * out);
/* Advances penalties, grammar and the rest over a token that is committed. */
int  llama_spec_sampler_accept(llama_spec_sampler * sampler, int32_t id, bool is_generated);

/* ---- chats ---------------------------------------------------------------------------------------- */

/* Texts that are handed out are zero-terminated UTF-8; give them back with llama_spec_text_free(). */
void llama_spec_text_free(char * text);

/* A JSON schema as GBNF rules, of which `root` is the first. ARGUMENT says what of it cannot be. */
int  llama_spec_schema_to_grammar(const char * schema, char ** out);

typedef struct llama_spec_chat         llama_spec_chat;
typedef struct llama_spec_chat_session llama_spec_chat_session;

/* The chat template of a model, or the one given, as the engine's own server reads it. It keeps the model alive. */
int  llama_spec_chat_new(llama_spec_model * model, const char * source, llama_spec_chat ** out);
void llama_spec_chat_free(llama_spec_chat * chat);
/* request: {messages, tools, tool_choice ("auto", "none", "required"), parallel_tool_calls, json_schema, grammar,
 * reasoning_format ("none", "auto", "deepseek"), add_generation_prompt, continue_final_message (true, "content",
 * "reasoning_content": the last message is the answer's beginning), variables, schema_rules}, all but messages optional.
 * schema_rules: [{schema, rules, properties: {name: rules}}], GBNF in place of what the engine makes of a schema.
 * answer: {prompt, format, grammar, grammar_lazy, trigger_patterns, trigger_tokens, prefill, stops, generation_prompt,
 * supports_thinking, thinking_start, thinking_ends, preserved_tokens, object_arguments, has_call_ids}. The session parses
 * what the model says to that prompt. */
int  llama_spec_chat_begin(llama_spec_chat * chat, const char * request, llama_spec_chat_session ** out, char ** answer);
void llama_spec_chat_session_free(llama_spec_chat_session * session);
/* text: what the model has said so far, with the names of preserved_tokens and of no other control token.
 * answer: {content, reasoning_content, tool_calls: [{name, arguments, id}], is_whole, n_told}. is_whole: nothing is
 * missing, and nothing follows. n_told: bytes of the text up to the last that is in one of the three. UNSUPPORTED: it is
 * not what the template's parser expects. Two threads may not use one session at once. */
int  llama_spec_chat_parse(llama_spec_chat_session * session, const char * text, int32_t n_bytes, char ** answer);

/* ---- quantize ------------------------------------------------------------------------------------- */

int llama_spec_quantize(const char * path, const char * out_path, const char * type, int32_t n_threads, bool pure,
                        bool allow_requantize);
/* The name of the i-th type that quantize takes, NULL past the last. */
const char * llama_spec_quantize_type(int32_t i);

/* ---- measuring ------------------------------------------------------------------------------------ */

/* The yardstick of benchmarks/overhead.py, entirely in C and with nothing of ours in it: each step decodes one token
 * of each of the sequences 0 .. n_seq - 1 in one batch, and takes the likeliest as its next. pos0: [n_seq] where the
 * first ones stand, right behind what their sequences hold. ids: [n_steps + 1, n_seq], of which the first row is
 * given and the others are filled. */
int llama_spec_baseline_decode(llama_spec_context * ctx, int32_t n_seq, const int32_t * pos0, int32_t * ids,
                               int32_t n_steps, double * seconds);
/* cdef end */

#ifdef __cplusplus
}
#endif

#endif
