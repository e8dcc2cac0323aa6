// Which models' states the CPU scans in place (kernels/scan.h), and the memory that this needs.
#pragma once

#include "kernels/scan.h"

struct llama_model;

namespace llama_spec {

// The state of a recurrent layer, with a log of n_log tokens; n_heads is 0 if the engine's own scan runs: with layers
// on a device, with a decay for each element (Mamba, Jamba), or with heads wider than the kernel's rows.
pyllama_spec_scan_shape scan_shape(const llama_model & model, uint32_t n_log);

} // namespace llama_spec
