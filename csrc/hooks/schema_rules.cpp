#include "hooks/schema_rules.h"

#include <stdexcept>
#include <utility>

namespace llama_spec {

namespace {

thread_local schema_rules * current = nullptr;

// Programs read the kind of a whole schema, and the properties of an object.
struct compiled_object : common_chat_schema_object, compiled_schema {
    explicit compiled_object(common_chat_schema_object && other) {
        properties            = std::move(other.properties);
        additional_properties = std::move(other.additional_properties);
    }
};

// Every other schema becomes a list of one alternative, so that pointers to it stay valid.
struct compiled_other : common_chat_schema_any_of, compiled_schema {
    explicit compiled_other(common_chat_schema_ptr only) { children.push_back(std::move(only)); }
};

template <typename T> common_chat_schema_ptr ruled(std::unique_ptr<T> node, const std::string & rules) {
    node->rules = rules;
    return node;
}

} // namespace

schema_rules::schema_rules(const common_json & given) : outer(current) {
    if (given.is_array()) {
        for (const auto & one : given) {
            entry & made = by_schema[one.at("schema").dump()];
            made.root = one.at("rules").get<std::string>();
            for (const auto & [name, rules] : one.at("properties").items()) {
                made.properties[name] = rules.template get<std::string>();
            }
            const auto & schema = one.at("schema");
            if (schema.contains("required") && schema.at("required").is_array()) {
                for (const auto & name : schema.at("required")) {
                    needed_by_tool[one.value("tool", "")].insert(name.template get<std::string>());
                }
            }
        }
    }
    current = this;
}

schema_rules::~schema_rules() {
    current = outer;
}

schema_rules * schema_rules::of_this_thread() {
    return current == nullptr || current->by_schema.empty() ? nullptr : current;
}

std::string schema_rules::unmade(const std::string & tool, const std::string & parameter, const std::string & form,
                                 const std::vector<std::string> & without) {
    const common_json place = { { "tool", tool }, { "parameter", parameter }, { "form", form }, { "without", without } };
    const auto [found, is_new] = numbers.emplace(place.dump(), asked.size());
    if (is_new) {
        asked.push_back(place);
    }
    return "argument-" + std::to_string(found->second);
}

common_chat_schema_ptr with_rules(const std::function<common_chat_schema_ptr()> & build, const common_json & root, const std::string * property) {
    if (current == nullptr || current->by_schema.empty()) {
        return build();
    }
    const auto found = current->by_schema.find(root.dump());
    if (found == current->by_schema.end()) {
        return build();
    }
    const auto & properties = found->second.properties;
    const auto   part       = property != nullptr ? properties.find(*property) : properties.end();
    if (property != nullptr && part == properties.end()) {
        return build();
    }
    const std::string & rules = property != nullptr ? part->second : found->second.root;

    common_chat_schema_ptr node;
    try {
        node = build();
    } catch (const std::runtime_error &) {
        node = std::make_unique<common_chat_schema_any>();
    }
    if (auto * object = dynamic_cast<common_chat_schema_object *>(node.get())) {
        return ruled(std::make_unique<compiled_object>(std::move(*object)), rules);
    }
    return ruled(std::make_unique<compiled_other>(std::move(node)), rules);
}

} // namespace llama_spec
