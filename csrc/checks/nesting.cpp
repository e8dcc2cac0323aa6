#include "checks/nesting.h"

#include "base/guard.h"

#include <string>

namespace llama_spec {

void check_nesting(const char * text, const char * what) {
    constexpr int MAX_DEPTH = 200;
    int depth = 0;
    for (const char * at = text; *at != '\0'; ++at) {
        if (*at == '{' || *at == '[' || *at == '(') {
            ++depth;
        } else if ((*at == '}' || *at == ']' || *at == ')') && depth > 0) {
            --depth;
        }
        if (depth > MAX_DEPTH) {
            fail(LLAMA_SPEC_ARGUMENT, std::string(what) + " is nested deeper than " + std::to_string(MAX_DEPTH) + " brackets");
        }
    }
}

} // namespace llama_spec
