// Ready-made rules for schemas in a chat. The engine generates rules for tools' schemas itself, and ignores keywords
// that it does not know; pyllama_spec/schema/ makes better ones. vendor/patches/0031-schema-rules.patch calls these
// functions.
#pragma once

#include "json-schema.h"

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace llama_spec {

// A schema as the engine sees it, with its rules: lines of "name ::= body", the first of which is the start.
struct compiled_schema {
    std::string rules;

    virtual ~compiled_schema() = default;
};

// Sets the rules of schemas for this thread during the object's lifetime.
class schema_rules {
public:
    // A list of {"schema": {...}, "rules": "...", "properties": {"name": "..."}, "tool": "..."}, or null.
    explicit schema_rules(const common_json & given);
    ~schema_rules();

    schema_rules(const schema_rules &)             = delete;
    schema_rules & operator=(const schema_rules &) = delete;

    // The rules that are set, if there are any.
    static schema_rules * of_this_thread();

    // The parameters that a tool requires.
    const std::set<std::string> & needed(const std::string & tool) { return needed_by_tool[tool]; }

    // The name of a rule that Python has yet to make; each of them is in `asked`.
    std::string unmade(const std::string & tool, const std::string & parameter, const std::string & form,
                       const std::vector<std::string> & without);

    common_json asked = common_json::array();

private:
    friend common_chat_schema_ptr with_rules(const std::function<common_chat_schema_ptr()> &, const common_json &, const std::string *);

    struct entry {
        std::string root;
        std::map<std::string, std::string> properties;
    };

    std::map<std::string, entry>                 by_schema;
    std::map<std::string, std::set<std::string>> needed_by_tool;
    std::map<std::string, size_t>                numbers;  // of what is asked
    schema_rules *               outer;
};

// Calls `build` for a schema or one of its properties, together with its known rules. If the engine cannot read the
// schema, it counts as any value.
common_chat_schema_ptr with_rules(const std::function<common_chat_schema_ptr()> & build, const common_json & root, const std::string * property);

} // namespace llama_spec
