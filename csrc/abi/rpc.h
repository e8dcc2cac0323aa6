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

// Why the last call on this thread lost a server; "" where it lost none.
std::string lost_server_of_call();
// Whether that was because the call was to end.
bool        is_stopped_call();
void        begin_call();

// While one lives on a thread, a server that is lost is no error there.
class freeing {
public:
    freeing();
    ~freeing();
    freeing(const freeing &) = delete;
    freeing & operator=(const freeing &) = delete;

private:
    bool before;
};

} // namespace llama_spec
