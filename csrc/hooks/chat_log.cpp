// Stands in place of the engine's common/log.cpp, whose log is written by a thread of its own: here a process keeps no
// thread that nobody asked for. What the chat code has to say of a template is an exception as well, or of no use here.

#include "log.h"

int common_log_get_verbosity_thold(void) {
    return -1;
}

struct common_log * common_log_main() {
    return nullptr;
}

void common_log_add(struct common_log *, enum ggml_log_level, const char *, ...) {
}
