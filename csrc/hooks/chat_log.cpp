// Replaces the engine's common/log.cpp, which writes its log on a thread of its own: our process starts no unrequested
// threads. The chat code also throws what it logs about a template, or we do not need it.

#include "log.h"

int common_log_get_verbosity_thold(void) {
    return -1;
}

struct common_log * common_log_main() {
    return nullptr;
}

void common_log_add(struct common_log *, enum ggml_log_level, const char *, ...) {
}
