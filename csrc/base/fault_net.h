// The last net under a damaged file: a division by zero or a read through a null pointer in the engine's own code
// becomes an exception.
#pragma once

#include <stdexcept>

namespace llama_spec {

// Thrown where the engine divided by zero, or used a tensor that the file does not have.
struct engine_fault : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// While one lives, such a fault of this thread is thrown. Nested ones do nothing.
class fault_net {
public:
    fault_net();
    ~fault_net();
    fault_net(const fault_net &) = delete;
    fault_net & operator=(const fault_net &) = delete;

private:
    bool is_outermost;
};

// Puts the net's handlers in place, also if another library has put its own there since. They pass on whatever is not
// the engine's on a thread with a net.
void stretch_fault_net();

} // namespace llama_spec
