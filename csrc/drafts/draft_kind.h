// The interface of draft models to the rest of csrc/, the same for every kind. A new kind needs a folder beside this
// file and a line in registry.cpp. If it does not use the engine's graph, a file with the name of the engine's file
// replaces it.
#pragma once

#include "base/abi_types.h"

#include "ggml.h"

#include <cstdint>
#include <memory>
#include <string>

struct llama_context;
struct llama_model;

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

class draft_kind {
public:
    virtual ~draft_kind() = default;

    // The name as it stands in "an EAGLE-3 draft".
    virtual const char * name() const = 0;
    // Returns why the draft cannot draft for the target; empty if it can. Opens no context.
    virtual std::string mismatch(const llama_model * draft, const llama_model * target) const = 0;
    // `target` is NULL if the draft is opened on its own. Throws std::runtime_error for a damaged file.
    virtual std::unique_ptr<draft_context> open(const llama_model * draft, const llama_model * target) const = 0;
    // Returns where an n-gram table lies in the draft's file.
    virtual llama_spec_ngrams ngrams(const llama_model *) const { return {}; }
    // For a kind that drafts in blocks.
    virtual llama_spec_block block(const llama_model *) const { return {}; }
};

// The kind of a model, by its architecture; NULL if it is no draft.
const draft_kind * find_draft_kind(const llama_model * model);

// ---- the MTP head in a target's own file, which has no architecture of its own. mtp/kind.cpp

const draft_kind & mtp_kind();
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

} // namespace llama_spec
