// Texts that leave the C ABI; llama_spec_text_free() takes them back.
#pragma once

#include <cstring>
#include <string>

namespace llama_spec {

inline char * text_out(const std::string & text) {
    char * out = new char[text.size() + 1];
    std::memcpy(out, text.c_str(), text.size() + 1);
    return out;
}

} // namespace llama_spec
