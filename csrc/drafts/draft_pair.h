// What every kind asks of a draft and its target.
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

// As of a draft that reads rows of the target: their width, the layers, the vocabulary, and the tensors that it takes
// from the target where it has none of its own. Empty if the two go together, else the first difference.
std::string pair_mismatch(const llama_model * draft, const llama_model * target, int64_t n_embd_target);

// The same of an MTP head in a file of its own, which was made for one model.
std::string head_mismatch(const llama_model * draft, const llama_model * target);

// The matrix if it lies in the host's memory, where a part of its rows can be used; else NULL.
const ggml_tensor * in_host_memory(const ggml_tensor * matrix);
// Of a draft that chooses from the whole vocabulary: its output matrix or the target's, if it lies there; else NULL.
const ggml_tensor * whole_output(const llama_model * draft, const llama_model * target);

// How many ids the draft chooses from.
int32_t n_vocab_draft(const llama_model * draft);

// The target's id of each draft id; empty where they are the same. Throws std::runtime_error, naming d2t, for an id
// outside the vocabulary or one that comes twice.
std::vector<int32_t> target_ids(const llama_model * draft);

// ---- while a file is loaded. Each answers why the file cannot be used, or with nothing.

// Of the key ARCH.target_layers.
std::string target_layers_fault(const std::string & arch, const std::vector<int32_t> & layers);
// Of the tensor d2t, if there is one; sets the number of ids that the draft chooses from.
std::string d2t_fault(llama_model_loader & ml, int64_t n_vocab, int64_t * n_vocab_draft);
// Of tensors that are none of the known ones; `doc` says what the keys mean that some of them need. The engine counts
// what is left over, and does not say what it is.
std::string leftover_fault(const llama_model_loader & ml, const std::set<std::string> & known, const char * doc);
// Of tensors whose type no product or norm can take; those in `ids`, which hold numbers of tokens, are left out.
std::string types_fault(const llama_model_loader & ml, const std::set<std::string> & ids);
// Of sizes that differ from layer to layer: a draft's layers are alike.
std::string layers_fault(const llama_hparams & hparams, const std::string & arch);
// Of a flag; sets it, if the key is there.
std::string flag_fault(const llama_model_loader & ml, const char * key, bool * out);

} // namespace llama_spec
