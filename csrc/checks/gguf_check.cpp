#include "checks/gguf_check.h"
#include "abi/guard.h"

#include "gguf.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

namespace llama_spec {

namespace {

uint64_t whole_number(const void * data, gguf_type type, size_t i) {
    switch (type) {
        case GGUF_TYPE_UINT32: return static_cast<const uint32_t *>(data)[i];
        case GGUF_TYPE_INT32:  return (uint64_t) std::max<int64_t>(static_cast<const int32_t *>(data)[i], 0);
        default:               return 1;    // the engine refuses other types by name
    }
}

// The largest number of a key that is a number or one per layer; 0 if there is no such key.
uint64_t largest(const gguf_context * file, const std::string & key) {
    const int64_t id = gguf_find_key(file, key.c_str());
    if (id < 0) {
        return 0;
    }
    const gguf_type type = gguf_get_kv_type(file, id);
    if (type == GGUF_TYPE_STRING) {
        return 1;
    }
    if (type != GGUF_TYPE_ARRAY) {
        return whole_number(gguf_get_val_data(file, id), type, 0);
    }
    const gguf_type item = gguf_get_arr_type(file, id);
    if (item == GGUF_TYPE_STRING) {
        return 1;
    }
    uint64_t found = 0;
    for (size_t i = 0; i < gguf_get_arr_n(file, id); ++i) {
        found = std::max(found, whole_number(gguf_get_arr_data(file, id), item, i));
    }
    return found;
}

// Models of state alone have no attention, and no heads.
bool has_attention(const gguf_context * file) {
    for (int64_t i = 0; i < gguf_get_n_tensors(file); ++i) {
        const char * name = gguf_get_tensor_name(file, i);
        if (std::strncmp(name, "blk.", 4) == 0 && std::strstr(name, ".attn_q") != nullptr) {
            return true;
        }
    }
    return false;
}

} // namespace

void check_gguf(const char * path) {
    const std::unique_ptr<gguf_context, decltype(&gguf_free)> file(
            gguf_init_from_file(path, { /*.no_alloc =*/ true, /*.ctx =*/ nullptr }), gguf_free);
    if (!file) {
        fail(LLAMA_SPEC_LOAD, "the file is damaged");
    }
    const int64_t id = gguf_find_key(file.get(), "general.architecture");
    if (id < 0 || gguf_get_kv_type(file.get(), id) != GGUF_TYPE_STRING) {
        fail(LLAMA_SPEC_LOAD, "the file does not say what kind of model it holds: general.architecture is missing");
    }
    const std::string arch  = gguf_get_val_str(file.get(), id);
    const std::string heads = arch + ".attention.head_count";
    if (has_attention(file.get()) && largest(file.get(), heads) == 0) {
        fail(LLAMA_SPEC_LOAD, "the file is damaged: the model has attention, and " + heads + " is missing or 0");
    }
    for (const char * name : { ".full_attention_interval", ".interleave_moe_layer_step" }) {
        // Of these models only llama4 asks first, and files of its kind without experts hold a 0.
        if (arch != "llama4" && gguf_find_key(file.get(), (arch + name).c_str()) >= 0 && largest(file.get(), arch + name) == 0) {
            fail(LLAMA_SPEC_LOAD, "the file is damaged: " + arch + name + " is 0");
        }
    }
}

} // namespace llama_spec
