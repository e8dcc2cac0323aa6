// The last protection against a damaged file: turns a division by zero or a read through a null pointer in the engine's
// code into an exception.
#pragma once

#include <stdexcept>

namespace llama_spec {

// Thrown if the engine divided by zero, or used a tensor that the file does not have.
struct engine_fault : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// During its lifetime, such a fault on this thread throws. Nested objects do nothing.
class fault_net {
public:
    fault_net();
    ~fault_net();
    fault_net(const fault_net &) = delete;
    fault_net & operator=(const fault_net &) = delete;

private:
    bool is_outermost;
};

// Installs the handlers, even if another library has installed its own since. They pass on every signal that is not
// from the engine on a protected thread.
void stretch_fault_net();

} // namespace llama_spec
