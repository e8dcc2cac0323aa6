// Servers of layers: what other machines, or other processes, compute with. Without GGML_RPC there are none.
#pragma once

#include "abi/handles.h"

#include "ggml-backend.h"

#include <string>
#include <vector>

namespace llama_spec {

// Connects if it must; throws where the server is lost. holder: keeps the connection open.
std::vector<ggml_backend_dev_t> server_devices(const char * endpoint, ggml_backend_ptr & holder);

// As in "CUDA0", and "RPC0[host:port]" of a server.
const char * device_name(ggml_backend_dev_t dev);

bool is_server(ggml_backend_dev_t dev);

} // namespace llama_spec
