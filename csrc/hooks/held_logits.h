// Logits that stay on the device that computed them until a caller reads them.
#pragma once

#include "ggml-backend.h"

#include <cstdint>

class  llm_graph_result;
struct llama_context;
struct llama_model;

// The likeliest token of token i of the last batch, where the device has chosen it; negative where it has not, or where
// the row has no number that could be the largest: the row itself says then.
int32_t llama_spec_likeliest(llama_context * ctx, int32_t i);

// ---- call sites

// Of logits that are computed on a device, the likeliest id of each row becomes a part of the graph; of an MTP head's, the
// likeliest two and their probabilities.
void llama_spec_add_likeliest(const llama_model & model, llm_graph_result & res, bool is_head);

// Whether the logits of a batch's last part, rows `first` and on of its outputs, can wait until they are read.
bool llama_spec_hold_logits(llama_context & ctx, const llm_graph_result & res, ggml_backend_t backend, int64_t first);

// Somebody is about to read them; or, for good, to move rows, after which the likeliest ids are not theirs.
void llama_spec_fetch_logits(llama_context & ctx, bool for_good);

// Another graph is about to be computed.
void llama_spec_drop_logits(llama_context & ctx);
