// Schemas in a chat whose rules are made already. The engine makes rules of the schemas of tools itself, and leaves out what
// it does not know; pyllama_spec/schema/ makes better ones. vendor/patches/0031-schema-rules.patch asks here for them.
#pragma once

#include "json-schema.h"

#include <functional>
#include <map>
#include <string>

namespace llama_spec {

// A schema as the engine sees it, with its rules: lines of "name ::= body", the first of which begins.
struct compiled_schema {
    std::string rules;

    virtual ~compiled_schema() = default;
};

// The rules of schemas, for what this thread does while the object lives.
class schema_rules {
public:
    // A list of {"schema": {...}, "rules": "...", "properties": {"name": "..."}}; or null.
    explicit schema_rules(const common_json & given);
    ~schema_rules();

    schema_rules(const schema_rules &)             = delete;
    schema_rules & operator=(const schema_rules &) = delete;

private:
    friend common_chat_schema_ptr with_rules(const std::function<common_chat_schema_ptr()> &, const common_json &, const std::string *);

    struct entry {
        std::string root;
        std::map<std::string, std::string> properties;
    };

    std::map<std::string, entry> by_schema;
    schema_rules *               outer;
};

// What `build` makes of a schema, or of one of its properties, with the rules that are known of it. A schema that the engine
// cannot read is any value to it then.
common_chat_schema_ptr with_rules(const std::function<common_chat_schema_ptr()> & build, const common_json & root, const std::string * property);

} // namespace llama_spec
