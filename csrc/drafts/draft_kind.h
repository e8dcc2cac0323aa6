// What the rest of csrc/ asks of a draft model, whatever its kind. A new kind is a folder beside this file and a
// line in registry.cpp; its graph, if it is not the engine's own, a file there of the engine's file's name.
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

// A draft's part of one context: made before the engine's context is, and asked at every decode. The messages of
// its exceptions and answers are for the user.
class draft_context {
public:
    virtual ~draft_context() = default;

    // Once, when the engine's context is open.
    virtual void prepare(llama_context * ctx) = 0;
    // Why this batch cannot be decoded; empty if it can. Asked before any of it reaches the engine.
    virtual std::string refuse(const llama_spec_batch & batch) const = 0;
    // Before each decode: how its rows are to be read, and what is wanted of it.
    virtual void set_mode(llama_context * ctx, const llama_spec_batch & batch) = 0;

    // What a decode gives for a token with an output: at most so many candidates, and a row of so many numbers.
    virtual int32_t n_candidates() const = 0;
    virtual int32_t n_row() const = 0;
    // The width of a batch's rows; 0 where they are as wide as the model's input.
    virtual int32_t n_row_inp() const { return 0; }
    // The output matrix, of which it can use a part of the rows; NULL where it needs the whole.
    virtual const ggml_tensor * output() const { return nullptr; }
    // How many rows a part of it has at least.
    virtual int32_t least_rows() const { return 1; }
    // Reads candidates for token i of the last batch, likeliest first, as ids of the target. `given` is what was chosen
    // after token i - 1, for kinds in which that changes what follows. Returns how many there are, at most n_max;
    // *row is NULL where no output was asked for. `part` are the rows of the output matrix that the batch was decoded
    // with; NULL for the whole. Throws std::runtime_error for a broken result.
    virtual int32_t read(llama_context * ctx, int32_t i, int32_t given, int32_t n_max, int32_t * ids, float * probabilities,
                         const float ** row, const draft_output * part) const = 0;
};

class draft_kind {
public:
    virtual ~draft_kind() = default;

    // As in "an EAGLE-3 draft".
    virtual const char * name() const = 0;
    // Why the draft cannot draft for the target; empty if it can. Makes no context.
    virtual std::string mismatch(const llama_model * draft, const llama_model * target) const = 0;
    // `target` is NULL where the draft is opened on its own. Throws std::runtime_error for a broken file.
    virtual std::unique_ptr<draft_context> open(const llama_model * draft, const llama_model * target) const = 0;
    // Where an n-gram table lies in the draft's file.
    virtual llama_spec_ngrams ngrams(const llama_model *) const { return {}; }
    // Of a kind that drafts in blocks.
    virtual llama_spec_block block(const llama_model *) const { return {}; }
};

// The kind of a model, by its architecture; NULL for one that is no draft.
const draft_kind * find_draft_kind(const llama_model * model);

// ---- the MTP head in a target's own file: no architecture of its own. mtp/kind.cpp

const draft_kind & mtp_kind();
// With how many heads of an architecture this version drafts: none, one, or as many as a file can have.
int32_t most_heads(const std::string & arch);
// How many heads the file says it has, loaded or not.
int32_t n_heads(const llama_model * model);
// Why a model's head cannot draft; empty if it was loaded and can.
std::string head_fault(const llama_model * model);

// Whether the file has heads and none of the layers before them.
bool is_head_alone(const llama_model * model);

// The weights of a loaded head, and the type that most of them are of. Zeros where none is loaded.
struct head_weights {
    uint64_t  n_bytes = 0;
    ggml_type type    = GGML_TYPE_F32;
};
head_weights weights_of_head(const llama_model * model);

// The names of all kinds, as in "EAGLE-3, DFlash".
std::string draft_kind_names();

} // namespace llama_spec
