// A check of graphs before they are computed.
#pragma once

struct ggml_cgraph;

// Throws std::runtime_error if a node has a parameter that its CPU kernel would assert on.
void llama_spec_check_nodes(ggml_cgraph * graph);
