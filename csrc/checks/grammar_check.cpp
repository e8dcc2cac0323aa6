#include "checks/grammar_check.h"
#include "base/guard.h"

#include "llama-grammar.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace llama_spec {

namespace {

// The engine's recursion takes some hundred bytes of stack per level, and threads may have 512 KiB.
constexpr int    MAX_GROUP_DEPTH = 200;
constexpr size_t MAX_RULE_DEPTH  = 1000;
// A grammar for all of JSON has some 300 elements, and one made from a large schema some ten thousand.
constexpr size_t MAX_ELEMENTS    = 1000000;

// The pattern matcher recurses for each generated character, as it does for the words in tokenizer_bounds.cpp.
constexpr size_t MAX_TRIGGER_BYTES = 1000;
constexpr size_t STACK_PER_BYTE = 2048, USUAL_STACK = 1 << 20, MAX_STACK = 1 << 30;

[[noreturn]] void refuse(const std::string & why) {
    fail(LLAMA_SPEC_ARGUMENT, "the `grammar` cannot be used: " + why);
}

// Skips a quoted string or a character class; a backslash may escape its end character.
const char * skip_quoted(const char * p, char end) {
    for (++p; *p != 0 && *p != end; ++p) {
        if (*p == '\\' && p[1] != 0) {
            ++p;
        }
    }
    return p;
}

uint64_t number_at(const char *& p) {
    uint64_t n = 0;
    for (; *p >= '0' && *p <= '9'; ++p) {
        n = n < UINT64_MAX / 20 ? n * 10 + (uint64_t) (*p - '0') : n;
    }
    return n;
}

// Skips white space, newlines and comments, as the engine does within braces.
const char * skip_space(const char * p) {
    for (;;) {
        p += std::strspn(p, " \t\r\n");
        if (*p != '#') {
            return p;
        }
        p += std::strcspn(p, "\r\n");
    }
}

// {5,2} makes the engine count down from 2^64.
void check_range(const char * p) {
    const std::string shown(p, std::min<size_t>(std::strcspn(p, "}") + 1, 40));
    p = skip_space(p + 1);
    const uint64_t low = number_at(p);
    p = skip_space(p);
    if (*p != ',') {
        return;
    }
    p = skip_space(p + 1);
    if (*p >= '0' && *p <= '9' && number_at(p) < low) {
        refuse("the repetition " + shown + " ends before it begins");
    }
}

void check_text(const char * p) {
    int depth = 0;
    for (; *p != 0; ++p) {
        switch (*p) {
            case '"': p = skip_quoted(p, '"'); break;
            case '[': p = skip_quoted(p, ']'); break;
            case '#': p += std::strcspn(p, "\r\n") - 1; break;
            case '{': check_range(p); break;
            case '(': ++depth; break;
            case ')': --depth; break;
            default: break;
        }
        if (depth > MAX_GROUP_DEPTH) {
            refuse("its parentheses are nested more than " + std::to_string(MAX_GROUP_DEPTH) + " deep");
        }
        if (*p == 0) {
            return;
        }
    }
}

const char * skip_space_and_comments(const char * p) {
    while (*p == ' ' || *p == '\t' || *p == '\r' || *p == '\n' || *p == '#') {
        p += *p == '#' ? std::strcspn(p, "\r\n") : 1;
    }
    return p;
}

void parse(llama_grammar_parser & parser, const char * text) {
    try {
        for (const char * p = skip_space_and_comments(text); *p != 0;) {
            p = parser.parse_rule(p);
        }
    } catch (const std::exception & e) {
        // The engine quotes the whole rest of the grammar.
        std::string why = e.what();
        if (why.size() > 120) {
            why = why.substr(0, 120) + " ...";
        }
        refuse(why);
    }
}

std::string name_of(const llama_grammar_parser & parser, size_t rule) {
    for (const auto & [name, id] : parser.symbol_ids) {
        if (id == rule) {
            return name;
        }
    }
    return std::to_string(rule);
}

void check_references(const llama_grammar_parser & parser) {
    const auto & rules = parser.rules;
    for (const auto & rule : rules) {
        for (const auto & element : rule) {
            if (element.type == LLAMA_GRETYPE_RULE_REF && (element.value >= rules.size() || rules[element.value].empty())) {
                refuse("it uses the rule '" + name_of(parser, element.value) + "', which it does not define");
            }
        }
    }
}

// For each rule: the rules that it may begin with, and whether it may match nothing. After a rule that may be empty the
// next one may come first too, so this repeats until nothing changes.
struct beginnings {
    std::vector<std::vector<uint32_t>> first;
    std::vector<bool> may_be_empty;

    explicit beginnings(const llama_grammar_rules & rules) : first(rules.size()), may_be_empty(rules.size(), false) {
        for (bool changed = true; changed;) {
            changed = false;
            // Backwards: a generated rule comes after the one that uses it, so most are final after one pass.
            for (size_t i = rules.size(); i-- > 0;) {
                if (!may_be_empty[i] && read(rules[i], nullptr)) {
                    may_be_empty[i] = changed = true;
                }
            }
        }
        for (size_t i = 0; i < rules.size(); ++i) {
            read(rules[i], &first[i]);
        }
    }

private:
    bool read(const llama_grammar_rule & rule, std::vector<uint32_t> * out) const {
        bool at_start = true, any_empty = false;
        for (const auto & element : rule) {
            if (element.type == LLAMA_GRETYPE_ALT || element.type == LLAMA_GRETYPE_END) {
                any_empty = any_empty || at_start;
                at_start  = true;
            } else if (at_start && element.type == LLAMA_GRETYPE_RULE_REF) {
                if (out != nullptr) {
                    out->push_back(element.value);
                }
                at_start = may_be_empty[element.value];
            } else {
                at_start = false;
            }
        }
        return any_empty;
    }
};

// Walks without recursion over the rules that each rule may begin with: a cycle is left recursion, and the longest path
// is the engine's recursion depth.
void check_depth(const llama_grammar_parser & parser) {
    const beginnings graph(parser.rules);
    enum : uint8_t { NEW, OPEN, DONE };
    std::vector<uint8_t> state(parser.rules.size(), NEW);
    std::vector<size_t>  depth(parser.rules.size(), 1), next(parser.rules.size(), 0);

    std::vector<uint32_t> path;
    for (uint32_t start = 0; start < parser.rules.size(); ++start) {
        if (state[start] == NEW) {
            path.push_back(start);
        }
        while (!path.empty()) {
            const uint32_t rule = path.back();
            state[rule] = OPEN;
            if (next[rule] == graph.first[rule].size()) {
                state[rule] = DONE;
                path.pop_back();
                if (depth[rule] > MAX_RULE_DEPTH) {
                    refuse("its rules begin with one another more than " + std::to_string(MAX_RULE_DEPTH) + " deep");
                }
                if (!path.empty()) {
                    depth[path.back()] = std::max(depth[path.back()], depth[rule] + 1);
                }
                continue;
            }
            const uint32_t child = graph.first[rule][next[rule]++];
            if (state[child] == OPEN) {
                refuse("left recursion: the rule '" + name_of(parser, child) + "' may begin with itself");
            }
            if (state[child] == NEW) {
                path.push_back(child);
            } else {
                depth[rule] = std::max(depth[rule], depth[child] + 1);
            }
        }
    }
}

} // namespace

void check_grammar(const llama_vocab * vocab, const char * text, const char * root) {
    check_text(text);
    llama_grammar_parser parser(vocab);
    parse(parser, text);
    if (parser.rules.empty()) {
        refuse("it has no rules");
    }
    size_t n_elements = 0;
    for (const auto & rule : parser.rules) {
        n_elements += rule.size();
    }
    if (n_elements > MAX_ELEMENTS) {
        refuse("it has " + std::to_string(n_elements) + " elements; at most " + std::to_string(MAX_ELEMENTS) + " can be used");
    }
    check_references(parser);
    if (parser.symbol_ids.find(root) == parser.symbol_ids.end()) {
        refuse(std::string("it has no rule '") + root + "' to begin with");
    }
    check_depth(parser);
}

void check_triggers(const char * const * patterns, int32_t n) {
    for (int32_t i = 0; i < n; ++i) {
        if (std::strlen(patterns[i]) > MAX_TRIGGER_BYTES) {
            refuse("the trigger " + std::string(patterns[i], 40) + "... has more than " + std::to_string(MAX_TRIGGER_BYTES) + " bytes");
        }
    }
}

size_t trigger_stack(size_t n_bytes) {
    const size_t n_stack = USUAL_STACK + n_bytes * STACK_PER_BYTE;
    if (n_stack > MAX_STACK) {
        fail(LLAMA_SPEC_UNSUPPORTED, "the `grammar` waits for a trigger since " + std::to_string(n_bytes) +
                " bytes of text; look for it in the text instead");
    }
    return n_stack;
}

} // namespace llama_spec
