// Checks that every kind makes of a draft and its target.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

struct ggml_tensor;
struct llama_hparams;
struct llama_model;
struct llama_model_loader;

namespace llama_spec {

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
