// The interface of draft models to the rest of csrc/, the same for every kind. A new kind needs a folder beside this
// file and a line in draft_pair.cpp. If it does not use the engine's graph, a file with the name of the engine's file
// replaces it.
#pragma once

#include "base/abi_types.h"

#include "ggml.h"

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

struct llama_context;
struct llama_hparams;
struct llama_model;
struct llama_model_loader;

namespace llama_spec {

class draft_output;

// A draft's part of one context: made before the engine's context, and called at every decode. The messages of its
// exceptions and answers go to the user.
class draft_context {
public:
    virtual ~draft_context() = default;

    // Called once, after the engine's context is opened.
    virtual void prepare(llama_context * ctx) = 0;
    // Returns why this batch cannot be decoded; empty if it can. Called before the engine gets any of it.
    virtual std::string refuse(const llama_spec_batch & batch) const = 0;
    // Called before each decode: sets how its rows are read, and which results are needed.
    virtual void set_mode(llama_context * ctx, const llama_spec_batch & batch) = 0;

    // The results for a token with an output: the maximum number of candidates, and the length of the row.
    virtual int32_t n_candidates() const = 0;
    virtual int32_t n_row() const = 0;
    // The width of a batch's rows; 0 if it is the width of the model's input.
    virtual int32_t n_row_inp() const { return 0; }
    // The output matrix, if the draft can use a part of its rows; NULL if it needs all.
    virtual const ggml_tensor * output() const { return nullptr; }
    // The minimum number of rows of a part.
    virtual int32_t least_rows() const { return 1; }
    // Reads candidates for token i of the last batch, likeliest first, as ids of the target. `given` is the token
    // chosen after token i - 1, for kinds whose candidates depend on it. Returns how many there are, at most n_max;
    // *row is NULL if no output was requested. `part` holds the rows of the output matrix that the batch was decoded
    // with; NULL for the whole. Throws std::runtime_error for an invalid result.
    virtual int32_t read(llama_context * ctx, int32_t i, int32_t given, int32_t n_max, int32_t * ids, float * probabilities,
                         const float ** row, const draft_output * part) const = 0;
};

struct draft_kind {
    const char * name;  // as it stands in "an EAGLE-3 draft"
    // Returns why the draft cannot draft for the target; empty if it can. Opens no context.
    std::string (*mismatch)(const llama_model * draft, const llama_model * target);
    // `target` is NULL if the draft is opened on its own. Throws std::runtime_error for a damaged file.
    std::unique_ptr<draft_context> (*open)(const llama_model * draft, const llama_model * target);
    // NULL for a kind that does not draft in blocks.
    llama_spec_block (*block)(const llama_model * draft);
};

// MTP_KIND: the head in a target's own file, which has no architecture of its own.
extern const draft_kind EAGLE3_KIND, DFLASH_KIND, MTP_KIND;

// The kind of a model, by its architecture; NULL if it is no draft.
const draft_kind * find_draft_kind(const llama_model * model);

// ---- MTP heads: mtp/kind.cpp

// How many heads of an architecture this version can draft with: none, one, or the maximum number in a file.
int32_t most_heads(const std::string & arch);
// The number of heads in the file, loaded or not.
int32_t n_heads(const llama_model * model);
// Returns why a model's head cannot draft; empty if it is loaded and can.
std::string head_fault(const llama_model * model);

// Says whether the file has heads but none of the layers before them.
bool is_head_alone(const llama_model * model);

// The size of a loaded head's weights, and the type of most of them. Zeros if none is loaded.
struct head_weights {
    uint64_t  n_bytes = 0;
    ggml_type type    = GGML_TYPE_F32;
};
head_weights weights_of_head(const llama_model * model);

// The names of all kinds, as in "EAGLE-3, DFlash".
std::string draft_kind_names();

// ---- Checks that every kind makes of a draft and its target: draft_pair.cpp

// For a draft that reads the target's rows: compares the rows' width, the layers, the vocabulary, and the tensors that
// the draft takes from the target. Returns the first difference; empty if the two fit.
std::string pair_mismatch(const llama_model * draft, const llama_model * target, int64_t n_embd_target);

// The same for an MTP head in a file of its own, which was made for one model.
std::string head_mismatch(const llama_model * draft, const llama_model * target);

// Returns the matrix if it lies in the host's memory, where a part of its rows can be used; otherwise NULL.
const ggml_tensor * in_host_memory(const ggml_tensor * matrix);
// For a draft that chooses from the whole vocabulary: its output matrix or the target's, if it lies there; otherwise
// NULL.
const ggml_tensor * whole_output(const llama_model * draft, const llama_model * target);

// The number of ids that the draft chooses from.
int32_t n_vocab_draft(const llama_model * draft);

// The target's id for each draft id; empty if they are the same. Throws std::runtime_error, naming d2t, for an id
// outside the vocabulary or a duplicate.
std::vector<int32_t> target_ids(const llama_model * draft);

// ---- while a file is loaded. Each returns why the file cannot be used, or an empty text.

// Checks the key ARCH.target_layers.
std::string target_layers_fault(const std::string & arch, const std::vector<int32_t> & layers);
// Checks the tensor d2t, if there is one; sets the number of ids that the draft chooses from.
std::string d2t_fault(llama_model_loader & ml, int64_t n_vocab, int64_t * n_vocab_draft);
// Marks the n-gram table that files of earlier versions have as handled; returns the names of its tensors.
std::set<std::string> skip_ngrams(llama_model_loader & ml);
// Checks for unknown tensors; `doc` describes the keys that some of them need. The engine only counts unused tensors
// and does not name them.
std::string leftover_fault(const llama_model_loader & ml, const std::set<std::string> & known, const char * doc);
// Checks for tensors whose type no product or norm accepts, except those in `ids`, which hold token ids.
std::string types_fault(const llama_model_loader & ml, const std::set<std::string> & ids);
// Checks that sizes are the same for all layers, as a draft's must be.
std::string layers_fault(const llama_hparams & hparams, const std::string & arch);
// Reads and checks an optional flag.
std::string flag_fault(const llama_model_loader & ml, const char * key, bool * out);

} // namespace llama_spec
