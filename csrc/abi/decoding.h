// Decodes, and reads the logits, for the ABI functions that decode.
#pragma once

#include "abi/handles.h"

namespace llama_spec {

// llama_spec_decode() for an open context. The results are valid after synchronisation.
void decode(context_state & state, const llama_spec_batch & batch, bool encode);

// The logits of token i of the last batch.
const float * logits_of(const context_state & state, int32_t i);

} // namespace llama_spec
