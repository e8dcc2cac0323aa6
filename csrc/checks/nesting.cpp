#include "checks/nesting.h"

#include "base/guard.h"

#include <string>

namespace llama_spec {

namespace {

constexpr int MAX_DEPTH = 200;

void check(const char * text, const char * what, bool is_json) {
    int  depth     = 0;
    bool in_string = false;
    for (const char * at = text; *at != '\0'; ++at) {
        if (is_json && *at == '"') {
            in_string = !in_string;
        } else if (in_string) {
            at += *at == '\\' && at[1] != '\0';
        } else if (*at == '{' || *at == '[' || *at == '(') {
            ++depth;
        } else if ((*at == '}' || *at == ']' || *at == ')') && depth > 0) {
            --depth;
        }
        if (depth > MAX_DEPTH) {
            fail(LLAMA_SPEC_ARGUMENT, std::string(what) + " is nested deeper than " + std::to_string(MAX_DEPTH) + " brackets");
        }
    }
}

} // namespace

void check_nesting(const char * text, const char * what) {
    check(text, what, false);
}

void check_json_nesting(const char * text, const char * what) {
    check(text, what, true);
}

} // namespace llama_spec
