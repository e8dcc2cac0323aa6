// A decode and its logits, for the calls of the ABI that decode.
#pragma once

#include "abi/handles.h"

namespace llama_spec {

// llama_spec_decode() of an open context, whose results are there once it is synchronised.
void decode(context_state & state, const llama_spec_batch & batch, bool encode);

// The logits of token i of the last batch.
const float * logits_of(const context_state & state, int32_t i);

} // namespace llama_spec
