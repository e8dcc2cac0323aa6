#include "hooks/argument_rules.h"

#include "chat-peg-parser.h"

#include <type_traits>

namespace llama_spec {

namespace {

using builder = common_chat_peg_builder;
using mm3     = common_chat_peg_minimax_m3_mapper;

const std::set<std::string> CONTAINERS = { mm3::TOOL_ARG_OBJECT, mm3::TOOL_ARG_ARRAY };
const std::set<std::string> TEXTS      = { builder::TOOL_ARG_STRING_VALUE };

std::string grouped(const std::string & rules) {
    return "(" + rules + ")";
}

std::string joined(const std::vector<std::string> & parts, const std::string & between) {
    std::string text;
    for (const auto & part : parts) {
        text += (text.empty() ? "" : between) + part;
    }
    return text;
}

} // namespace

argument_rules::argument_rules(const common_peg_arena & arena) : arena(arena), rules(schema_rules::of_this_thread()) {
    for (common_peg_parser_id id = 0; rules != nullptr && id < arena.size(); ++id) {
        if (as<common_peg_rule_parser>(id) == nullptr && as<common_peg_tag_parser>(id) == nullptr) {
            continue;
        }
        std::set<std::string> names;
        ids arguments;
        walk(id, [&](common_peg_parser_id at) {
            const auto * tag = as<common_peg_tag_parser>(at);
            if (tag != nullptr && tag->tag == builder::TOOL_NAME) {
                names.insert(literal_of(at, builder::TOOL_NAME));
            } else if (tag != nullptr && (tag->tag == builder::TOOL_ARG || tag->tag == builder::TOOL_ARGS)) {
                arguments.push_back(at);
            }
            return tag == nullptr || tag->tag != builder::TOOL_ARG;  // what is in an argument is none of the tool's own
        });
        for (const auto argument : names.size() == 1 ? arguments : ids()) {
            tools[argument] = *names.begin();
        }
    }
}

// Calls `visit` for a parser and those below it, as long as it says so, in their order.
void argument_rules::walk(common_peg_parser_id id, const std::function<bool(common_peg_parser_id)> & visit) const {
    std::set<common_peg_parser_id> seen;
    ids todo = { id };
    while (!todo.empty()) {
        const auto at = todo.back();
        todo.pop_back();
        if (seen.insert(at).second && visit(at)) {
            const auto children = below(at);
            todo.insert(todo.end(), children.rbegin(), children.rend());
        }
    }
}

argument_rules::ids argument_rules::below(common_peg_parser_id id) const {
    return std::visit([&](const auto & p) -> ids {
        using T = std::decay_t<decltype(p)>;
        if constexpr (std::is_same_v<T, common_peg_sequence_parser> || std::is_same_v<T, common_peg_choice_parser>) {
            return p.children;
        } else if constexpr (std::is_same_v<T, common_peg_repetition_parser> || std::is_same_v<T, common_peg_rule_parser> ||
                             std::is_same_v<T, common_peg_tag_parser> || std::is_same_v<T, common_peg_atomic_parser> ||
                             std::is_same_v<T, common_peg_gbnf_parser> || std::is_same_v<T, common_peg_ac_parser>) {
            return { p.child };
        } else if constexpr (std::is_same_v<T, common_peg_ref_parser>) {
            return { arena.get_rule(p.name) };
        } else {
            return {};
        }
    }, arena.get(id));
}

// The first parser below `id`, or itself, with one of the tags.
common_peg_parser_id argument_rules::find(common_peg_parser_id id, const std::set<std::string> & tags) const {
    common_peg_parser_id found = COMMON_PEG_INVALID_PARSER_ID;
    walk(id, [&](common_peg_parser_id at) {
        const auto * tag = as<common_peg_tag_parser>(at);
        if (found == COMMON_PEG_INVALID_PARSER_ID && tag != nullptr && tags.count(tag->tag) > 0) {
            found = at;
        }
        return found == COMMON_PEG_INVALID_PARSER_ID;
    });
    return found;
}

bool argument_rules::has(common_peg_parser_id id, const std::set<std::string> & tags) const {
    return find(id, tags) != COMMON_PEG_INVALID_PARSER_ID;
}

std::string argument_rules::literal_of(common_peg_parser_id id, const char * tag) const {
    const auto found = find(id, { tag });
    if (found == COMMON_PEG_INVALID_PARSER_ID) {
        return "";
    }
    const auto * text = as<common_peg_literal_parser>(as<common_peg_tag_parser>(found)->child);
    return text == nullptr ? "" : text->literal;
}

std::optional<std::string> argument_rules::of(common_peg_parser_id id, const writer & write) {
    const auto owner = tools.find(id);
    if (owner != tools.end()) {
        tool = owner->second;
        return as<common_peg_tag_parser>(id)->tag == builder::TOOL_ARGS ? of_all(id, write) : of_one(id, write);
    }
    if (parameter.empty()) {
        return std::nullopt;
    }
    if (const auto * tag = as<common_peg_tag_parser>(id)) {
        if (tag->tag == builder::TOOL_ARG_STRING_VALUE) {
            common_peg_parser_id child = tag->child;
            while (as<common_peg_rule_parser>(child) != nullptr) {
                child = as<common_peg_rule_parser>(child)->child;
            }
            const auto * until = as<common_peg_until_parser>(child);
            return until == nullptr ? std::nullopt : std::optional(value(is_typed ? "typed" : "text", until->delimiters));
        }
        if (tag->tag == builder::TOOL_ARG_VALUE) {
            const auto * schema = as<common_peg_schema_parser>(tag->child);
            const bool is_made = schema != nullptr && dynamic_cast<const compiled_schema *>(schema->node) != nullptr;
            return is_made ? std::nullopt : std::optional(value("json", {}));
        }
        return std::nullopt;
    }
    if (const auto * negated = as<common_peg_not_parser>(id)) {
        if (const auto * text = as<common_peg_literal_parser>(negated->child)) {
            not_first.push_back(text->literal);
        }
        return std::nullopt;
    }
    if (!has(id, TEXTS)) {
        return std::nullopt;
    }
    if (const auto * either = as<common_peg_gbnf_parser>(id)) {  // JSON, or else a text
        const auto * choice = as<common_peg_choice_parser>(either->child);
        if (choice == nullptr) {
            return std::nullopt;
        }
        is_typed = true;
        return grouped(write(choice->children.back()));
    }
    if (const auto * text = as<common_peg_ac_parser>(id)) {
        return grouped(write(text->child));
    }
    if (const auto * shared = as<common_peg_rule_parser>(id)) {
        return grouped(write(shared->child));
    }
    return std::nullopt;
}

// The rules of one argument.
std::optional<std::string> argument_rules::of_one(common_peg_parser_id id, const writer & write) {
    const std::string name = literal_of(id, builder::TOOL_ARG_NAME);
    if (name.empty() || !parameter.empty()) {
        return std::nullopt;
    }
    value("parts", {});
    parameter = name;
    if (has(id, CONTAINERS)) {  // its parts are elements of their own
        value("elements", {});
        parameter.clear();
        return std::nullopt;
    }
    const std::string made = write(as<common_peg_tag_parser>(id)->child);
    parameter.clear();
    is_typed = false;
    not_first.clear();
    return grouped(made);
}

// The rules of all arguments, where the engine would take each any number of times, in any order.
std::optional<std::string> argument_rules::of_all(common_peg_parser_id id, const writer & write) {
    common_peg_parser_id child = as<common_peg_tag_parser>(id)->child;
    const auto * rule = as<common_peg_rule_parser>(child);
    if (rule != nullptr && rule->name == "gemma4-dict") {
        return value("gemma4", {});
    }
    // LFM2's: choice (separator choice)*; others': (choice space?)*.
    std::vector<std::string> between;
    bool is_separated = false;
    if (const auto * sequence = as<common_peg_sequence_parser>(child)) {
        is_separated = sequence->children.size() == 2 && as<common_peg_choice_parser>(sequence->children[0]) != nullptr;
        child = sequence->children.back();
        if (!is_separated) {
            return std::nullopt;
        }
    }
    const auto * repeated = as<common_peg_repetition_parser>(child);
    if (repeated == nullptr || repeated->min_count != 0 || repeated->max_count != -1) {
        return std::nullopt;
    }
    const common_peg_choice_parser * choice = as<common_peg_choice_parser>(repeated->child);
    if (const auto * sequence = as<common_peg_sequence_parser>(repeated->child)) {
        for (const auto part : sequence->children) {
            if (const auto * found = as<common_peg_choice_parser>(part)) {
                choice = found;
            } else {
                between.push_back(write(part));
            }
        }
    }
    if (choice == nullptr) {
        return std::nullopt;
    }
    const std::string space  = between.empty() ? "" : " " + joined(between, " ");
    const auto &      needed = rules->needed(tool);
    std::vector<std::string> first, others;
    for (const auto one : choice->children) {
        const bool is_needed = needed.count(literal_of(one, builder::TOOL_ARG_NAME)) > 0;
        const std::string made = write(one) + (is_separated ? "" : space);
        (is_needed ? first : others).push_back(made);
    }
    std::string made = joined(first, is_separated ? space + " " : " ");
    if (others.empty()) {
        return made;
    }
    const std::string any = grouped(joined(others, " | "));
    if (!is_separated) {
        return made + (made.empty() ? "" : " ") + any + "*";
    }
    return (made.empty() ? any : made) + " (" + space.substr(1) + " " + any + ")*";
}

// The name of the rule of a value, which Python makes.
std::string argument_rules::value(const std::string & form, std::vector<std::string> without) {
    without.insert(without.end(), not_first.begin(), not_first.end());
    return rules->unmade(tool, parameter, form, without);
}

} // namespace llama_spec
