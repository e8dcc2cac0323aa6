// Any bytes as a GGUF file: checks it, loads it, and reads its metadata.

#include "fuzz/fuzz.h"

#include <sys/mman.h>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t * data, size_t size) {
    static const int fd = memfd_create("fuzz.gguf", 0);
    if (ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != (ssize_t) size) {
        std::abort();
    }
    const fuzz::model m = fuzz::load("/proc/self/fd/" + std::to_string(fd), false);
    if (!m) {
        return 0;
    }
    llama_spec_model_info info;
    llama_spec_model_get_info(m.get(), &info);
    char buf[256];
    llama_spec_model_desc(m.get(), buf, sizeof(buf));
    for (int32_t i = 0; i < llama_spec_model_n_meta(m.get()); ++i) {
        llama_spec_model_meta_key(m.get(), i, buf, sizeof(buf));
        llama_spec_model_meta_value(m.get(), i, buf, sizeof(buf));
    }
    int32_t ids[64];
    llama_spec_tokenize(m.get(), "The cat 12 \xc3\xa9!", 13, ids, 64, true, true);
    return 0;
}
