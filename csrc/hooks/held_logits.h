// Logits that stay on the device that computed them until a caller reads them.
#pragma once

#include "ggml-backend.h"

#include <cstdint>

class  llm_graph_result;
struct llama_context;
struct llama_model;

// The likeliest token for token i of the last batch, if the device chose it. Negative if it did not, or if the row has
// no unique maximum: then the caller reads the row.
int32_t llama_spec_likeliest(llama_context * ctx, int32_t i);

// ---- call sites

// Adds to the graph the likeliest id of each row, if a device computes the logits; for an MTP head, the likeliest two
// ids and their probabilities.
void llama_spec_add_likeliest(const llama_model & model, llm_graph_result & res, bool is_head);

// Says whether the logits of a batch's last part, rows `first` and on of its outputs, can stay on the device until they
// are read.
bool llama_spec_hold_logits(llama_context & ctx, const llm_graph_result & res, ggml_backend_t backend, int64_t first);

// Called before the logits are read; or, permanently, before rows are moved, which would invalidate the likeliest ids.
void llama_spec_fetch_logits(llama_context & ctx, bool for_good);

// Called before another graph is computed.
void llama_spec_drop_logits(llama_context & ctx);
