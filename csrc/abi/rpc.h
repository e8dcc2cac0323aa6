// Servers of layers: processes, on this machine or others, that compute layers. Without GGML_RPC there are none.
#pragma once

#include "abi/handles.h"

#include "ggml-backend.h"

#include <string>
#include <vector>

namespace llama_spec {

// Connects if necessary; throws if the server is lost. holder: keeps the connection open.
std::vector<ggml_backend_dev_t> server_devices(const char * endpoint, ggml_backend_ptr & holder);

// The name, as in "CUDA0", or "RPC0[host:port]" for a server.
const char * device_name(ggml_backend_dev_t dev);

} // namespace llama_spec
