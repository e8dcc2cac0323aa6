// Which models' states are scanned in place on the CPU (kernels/scan.h), and what that takes.
#pragma once

#include "kernels/scan.h"

struct llama_model;

namespace llama_spec {

// The state of a recurrent layer, with a log of n_log tokens; n_heads is 0 where the engine's own scan runs: with
// layers on a device, a decay for each number (Mamba, Jamba), or a head wider than the kernel's rows.
pyllama_spec_scan_shape scan_shape(const llama_model & model, uint32_t n_log);

} // namespace llama_spec
