#include "checks/gguf_check.h"
#include "base/guard.h"
#include "checks/tokenizer_bounds.h"

#include "gguf.h"
#include "llama-arch.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace llama_spec {

namespace {

uint64_t whole_number(const void * data, gguf_type type, size_t i) {
    switch (type) {
        case GGUF_TYPE_UINT32: return static_cast<const uint32_t *>(data)[i];
        case GGUF_TYPE_INT32:  return (uint64_t) std::max<int64_t>(static_cast<const int32_t *>(data)[i], 0);
        default:               return 1;    // the engine refuses other types by name
    }
}

// The largest value of a key that holds a number, or one for each layer; 0 without the key.
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

// The first layer's value, read in the same way.
uint64_t first(const gguf_context * file, const std::string & key) {
    const int64_t id = gguf_find_key(file, key.c_str());
    const bool is_list = id >= 0 && gguf_get_kv_type(file, id) == GGUF_TYPE_ARRAY &&
            gguf_get_arr_type(file, id) != GGUF_TYPE_STRING && gguf_get_arr_n(file, id) > 0;
    return is_list ? whole_number(gguf_get_arr_data(file, id), gguf_get_arr_type(file, id), 0) : largest(file, key);
}

using gguf_file = std::unique_ptr<gguf_context, decltype(&gguf_free)>;

gguf_file read_header(const char * path) {
    gguf_file file(gguf_init_from_file(path, { /*.no_alloc =*/ true, /*.ctx =*/ nullptr }), gguf_free);
    if (!file) {
        fail(LLAMA_SPEC_LOAD, "the file is damaged");
    }
    return file;
}

// The engine divides by the number of heads: the first layer's, unless layers differ in kind. Models with only
// recurrent layers have none. The engine itself refuses architectures that it does not know.
void check_heads(const gguf_context * file, const std::string & name) {
    const llm_arch arch = llm_arch_from_string(name);
    if (arch == LLM_ARCH_UNKNOWN || arch == LLM_ARCH_WAVTOKENIZER_DEC || llm_arch_is_recurrent(arch)) {
        return;
    }
    const std::string key = name + ".attention.head_count";
    const bool layers_differ = llm_arch_is_hybrid(arch) || arch == LLM_ARCH_DECI;
    const std::string kv = key + "_kv";
    if (gguf_find_key(file, kv.c_str()) >= 0 && (layers_differ ? largest(file, kv) : first(file, kv)) == 0) {
        fail(LLAMA_SPEC_LOAD, "the file is damaged: " + kv + " is 0");
    }
    if ((layers_differ ? largest(file, key) : first(file, key)) == 0) {
        fail(LLAMA_SPEC_LOAD, "the file is damaged: the model has attention, and " + key + " is missing or 0");
    }
}

// For these architectures, the engine divides by the number of used experts before it checks it.
void check_experts(const gguf_context * file, const std::string & name) {
    const std::string used = name + ".expert_used_count";
    const bool is_missing = gguf_find_key(file, used.c_str()) < 0;
    const bool has_experts = largest(file, name + ".expert_count") > 0;
    const bool divides = name == "qwen35moe" || name == "qwen4exp" || name == "qwen3next";
    if ((has_experts || (divides && is_missing)) && largest(file, used) == 0) {
        fail(LLAMA_SPEC_LOAD, "the file is damaged: the model has experts, and " + used + " is missing or 0");
    }
}

// The engine's loop over a head of RWKV 7 handles 64 values at once and writes past the end of heads whose size is no
// multiple of 64.
void check_strides(const gguf_context * file, const std::string & arch) {
    constexpr uint64_t STRIDE = 64;
    const uint64_t size = arch == "rwkv7" || arch == "arwkv7" ? largest(file, arch + ".wkv.head_size") : 0;
    if (size % STRIDE != 0) {
        fail(LLAMA_SPEC_UNSUPPORTED, arch + ".wkv.head_size is " + std::to_string(size) + ", and the engine computes heads of "
                "multiples of " + std::to_string(STRIDE) + " only");
    }
}

} // namespace

void check_tensors_end(const char * path) {
    const auto file = read_header(path);
    std::error_code error;
    const uint64_t n_bytes = std::filesystem::file_size(path, error);
    for (int64_t i = 0; i < gguf_get_n_tensors(file.get()); ++i) {
        const uint64_t end = gguf_get_data_offset(file.get()) + gguf_get_tensor_offset(file.get(), i) + gguf_get_tensor_size(file.get(), i);
        if (error || end > n_bytes) {
            fail(LLAMA_SPEC_LOAD, "the file is cut off; download it again");
        }
    }
}

void check_gguf(const char * path) {
    const auto file = read_header(path);
    const int64_t id = gguf_find_key(file.get(), "general.architecture");
    if (id < 0 || gguf_get_kv_type(file.get(), id) != GGUF_TYPE_STRING) {
        fail(LLAMA_SPEC_LOAD, "the file does not say what kind of model it holds: general.architecture is missing");
    }
    const std::string arch  = gguf_get_val_str(file.get(), id);
    check_vocabulary(file.get());
    check_heads(file.get(), arch);
    check_experts(file.get(), arch);
    // Only for these architectures: the engine itself writes a 0 for keys that a model does not use.
    static const std::vector<std::pair<std::string, std::vector<std::string>>> divisors = {
        { ".full_attention_interval",       {} },
        { ".interleave_moe_layer_step",     { "ernie4_5-moe" } },
        { ".wkv.head_size",                 { "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7" } },
        { ".attention.output_group_count",  { "deepseek4", "dflash" } },
    };
    for (const auto & [name, archs] : divisors) {
        const bool divides = archs.empty() || std::find(archs.begin(), archs.end(), arch) != archs.end();
        if (divides && gguf_find_key(file.get(), (arch + name).c_str()) >= 0 && largest(file.get(), arch + name) == 0) {
            fail(LLAMA_SPEC_LOAD, "the file is damaged: " + arch + name + " is 0");
        }
    }
    check_strides(file.get(), arch);
}

} // namespace llama_spec
