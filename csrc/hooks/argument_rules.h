// Grammar rules for arguments of tool calls that a template writes outside JSON, such as text between tags. The engine
// takes any text there. Here each value becomes a rule that pyllama_spec/constraints.py makes of the parameter's schema.
// vendor/patches/0037-argument-rules.patch calls this.
#pragma once

#include "hooks/schema_rules.h"
#include "peg-parser.h"

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace llama_spec {

class argument_rules {
public:
    using writer = std::function<std::string(common_peg_parser_id)>;

    explicit argument_rules(const common_peg_arena & arena);

    // The rules of a parser; nothing where the engine's own are right. `write` gives those of its parts.
    std::optional<std::string> of(common_peg_parser_id id, const writer & write);

private:
    using ids = std::vector<common_peg_parser_id>;

    ids                  below(common_peg_parser_id id) const;
    void                 walk(common_peg_parser_id id, const std::function<bool(common_peg_parser_id)> & visit) const;
    common_peg_parser_id find(common_peg_parser_id id, const std::set<std::string> & tags) const;
    bool                 has(common_peg_parser_id id, const std::set<std::string> & tags) const;
    std::string          literal_of(common_peg_parser_id id, const char * tag) const;

    std::optional<std::string> of_all(common_peg_parser_id id, const writer & write);
    std::optional<std::string> of_one(common_peg_parser_id id, const writer & write);
    std::string value(const std::string & form, std::vector<std::string> without);

    template <typename T> const T * as(common_peg_parser_id id) const { return std::get_if<T>(&arena.get(id)); }

    const common_peg_arena & arena;
    schema_rules *           rules;
    std::map<common_peg_parser_id, std::string> tools;  // by their arguments

    // Where the writer is.
    std::string              tool;
    std::string              parameter;
    bool                     is_typed = false;  // a text that looks like JSON is read as such
    std::vector<std::string> not_first;         // how the value may not begin
};

} // namespace llama_spec
