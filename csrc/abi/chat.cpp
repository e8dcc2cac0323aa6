// Reads and writes chats as the engine's own server does: its templates with tools, the grammar of a call, and the
// parsers of models' answers. Input and output are JSON.

#include "abi/handles.h"
#include "checks/number_text.h"
#include "checks/work_limit.h"
#include "hooks/schema_rules.h"

#include "chat.h"
#include "chat-peg-parser.h"
#include "jinja/lexer.h"
#include "jinja/parser.h"
#include "jinja/runtime.h"
#include "sampling.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <ctime>
#include <iomanip>
#include <locale>
#include <set>
#include <sstream>
#include <string>

using namespace llama_spec;

namespace {

// Templates are untrusted. The stack is only reserved; freeing a chain of a million values needs it.
constexpr size_t CHAT_STACK_BYTES   = 512u << 20;
constexpr size_t MAX_TEMPLATE_BYTES = 1u << 20;
constexpr work_bounds bounds_of(const char * too_long, const char * too_much) {
    return { 10.0, too_long, 256u << 20, too_much, LLAMA_SPEC_UNSUPPORTED };
}
constexpr work_bounds TEMPLATE_BOUNDS = bounds_of(
    "the chat template takes more than 10 seconds; it may be damaged or hostile",
    "the chat template takes more than 256 MiB; it may be damaged or hostile");
constexpr work_bounds CHAT_BOUNDS = bounds_of(
    "the chat template with these messages and tools takes more than 10 seconds; it, or a schema, may be hostile",
    "the chat template with these messages and tools takes more than 256 MiB; it, or a schema, may be hostile");

// A text handed out through the C ABI; the caller frees it with llama_spec_text_free().
char * text_out(const std::string & text) {
    char * out = new char[text.size() + 1];
    std::memcpy(out, text.c_str(), text.size() + 1);
    return out;
}

template <typename F> void with_bounds(const work_bounds & bounds, F && body) {
    with_deep_stack(CHAT_STACK_BYTES, [&] { within(bounds, body); });
}

constexpr int MAX_DEPTH = 200;  // real tools and schemas have less than a tenth of that

// Throws if more than MAX_DEPTH brackets are open at once: the engine reads JSON, schemas, templates and answers with
// recursive functions, and unlimited nesting would overflow the stack, which ends the process. A level takes one or two
// kilobytes of the engine's eight-megabyte stack. Strings of JSON may hold any number: a user's text has them.
void check_nesting(const char * text, const char * what, bool is_json = false) {
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

// The engine's template parser recurses for each nested part.
void check_template(const char * text) {
    if (text != nullptr && std::strlen(text) > MAX_TEMPLATE_BYTES) {
        fail(LLAMA_SPEC_UNSUPPORTED, "the chat template has more than " + std::to_string(MAX_TEMPLATE_BYTES >> 10) + " KiB");
    }
    if (text != nullptr) {
        check_nesting(text, "the template");
    }
}

} // namespace

struct llama_spec_template {
    jinja::program program;
};

struct llama_spec_chat {
    std::shared_ptr<model_state> model;
    common_chat_templates_ptr    templates;
};

struct llama_spec_chat_session {
    common_chat_parser_params parser;
};

namespace {

// An unreadable template, messages that it refuses, and an answer in another form are not the engine's fault, which
// throws plain exceptions for them.
template <typename F> void with_code(int code, F && body) {
    try {
        body();
    } catch (const failure &) {
        throw;
    } catch (const engine_abort &) {
        throw;
    } catch (const std::bad_alloc &) {
        throw;
    } catch (const std::exception & e) {
        const std::string text = e.what();
        fail(code, text.substr(std::min(text.find_first_not_of('\n'), text.size())));
    }
}

common_json parsed(const char * text, const char * what) {
    check_nesting(text, what, /* is_json */ true);
    return common_json::parse(text);
}

// The string literals that a template compares, looks for, cuts at or assigns, and does not only print.
struct compared_strings {
    std::set<std::string> found;

    void read(const jinja::statement * node, bool is_compared) {
        if (const auto * literal = dynamic_cast<const jinja::string_literal *>(node)) {
            if (is_compared && !literal->val.empty()) {
                found.insert(literal->val);
            }
        } else if (const auto * array = dynamic_cast<const jinja::array_literal *>(node)) {
            read_all(array->val, is_compared);
        } else if (const auto * tuple = dynamic_cast<const jinja::tuple_literal *>(node)) {
            read_all(tuple->val, is_compared);
        } else if (const auto * object = dynamic_cast<const jinja::object_literal *>(node)) {
            for (const auto & [key, value] : object->val) {
                read(key.get(), is_compared);
                read(value.get(), is_compared);
            }
        } else if (node != nullptr) {
            const bool inside = is_compared || compares(node);
            jinja::context visit;
            visit.visitor = [&](bool, const jinja::statement *, const std::vector<jinja::visitor_pair> & parts) {
                for (const auto & [name, children] : parts) {
                    for (const auto * child : children) {
                        read(child, inside && name != "body");  // the text of a block is printed
                    }
                }
            };
            node->visit(visit);
        }
    }

    void read_all(const jinja::statements & nodes, bool is_compared) {
        for (const auto & node : nodes) {
            read(node.get(), is_compared);
        }
    }

private:
    template <typename T> static bool is(const jinja::statement * node) { return dynamic_cast<const T *>(node) != nullptr; }

    static bool compares(const jinja::statement * node) {
        if (const auto * binary = dynamic_cast<const jinja::binary_expression *>(node)) {
            const std::string & op = binary->op.value;
            return binary->op.t == jinja::token::comparison_binary_operator || op == "in" || op == "not in";
        }
        return is<jinja::call_expression>(node) || is<jinja::filter_expression>(node) || is<jinja::test_expression>(node) ||
               is<jinja::set_statement>(node);
    }
};

common_chat_templates_inputs read_request(const common_json & request, const llama_spec_chat & chat) {
    common_chat_templates_inputs in;
    in.messages    = common_chat_msgs_parse_oaicompat(request.at("messages"));
    in.tools       = common_chat_tools_parse_oaicompat(request.value("tools", common_json()));
    in.tool_choice = common_chat_tool_choice_parse_oaicompat(request.value("tool_choice", "auto"));
    in.json_schema = request.value("json_schema", "");
    in.grammar     = request.value("grammar", "");
    in.reasoning_format = common_reasoning_format_from_name(request.value("reasoning_format", "auto"));
    in.add_generation_prompt = request.value("add_generation_prompt", true);
    const auto caps = common_chat_templates_get_caps(chat.templates.get());
    in.parallel_tool_calls = request.value("parallel_tool_calls", caps.at("supports_parallel_tool_calls"));
    if (request.contains("continue_final_message")) {
        in.continue_final_message = common_chat_continuation_parse(request.at("continue_final_message"));
    }
    if (request.contains("variables")) {
        for (const auto & [name, value] : request.at("variables").items()) {
            in.chat_template_kwargs[name] = value.dump();
            if (name == "enable_thinking" && value.is_boolean()) {
                in.enable_thinking = value.template get<bool>();
            }
        }
    }
    return in;
}

// Writes the triggers that a lazy grammar waits for.
void write_triggers(const common_params_sampling & sampling, common_json & out) {
    auto patterns = common_json::array();
    auto tokens   = common_json::array();
    for (const auto & trigger : sampling.grammar_triggers) {
        const std::string & text = trigger.value;
        switch (trigger.type) {
            case COMMON_GRAMMAR_TRIGGER_TYPE_TOKEN:   tokens.push_back(trigger.token); break;
            case COMMON_GRAMMAR_TRIGGER_TYPE_WORD:    patterns.push_back(regex_escape(text)); break;
            case COMMON_GRAMMAR_TRIGGER_TYPE_PATTERN: patterns.push_back(text); break;
            case COMMON_GRAMMAR_TRIGGER_TYPE_PATTERN_FULL: {
                const bool begins = !text.empty() && text.front() == '^';
                const bool ends   = !text.empty() && text.back() == '$';
                patterns.push_back((begins ? "" : "^") + text + (ends ? "" : "$"));
                break;
            }
        }
    }
    out["trigger_patterns"] = patterns;
    out["trigger_tokens"]   = tokens;
}

// The ids of the part of the answer that the template has written already: a grammar of the whole answer must have
// accepted them. Some vocabularies add a space before a first control token; it is skipped.
common_json prefill(const llama_vocab * vocab, const std::string & text) {
    auto out = common_json::array();
    const auto ids = common_tokenize(vocab, text, false, true);
    for (size_t i = 0; i < ids.size(); ++i) {
        const std::string piece = common_token_to_piece(vocab, ids[i], true);
        const bool is_space = !piece.empty() && std::isspace((unsigned char) piece[0]);
        if (i == 0 && is_space && !std::isspace((unsigned char) text[0])) {
            continue;
        }
        out.push_back(ids[i]);
    }
    return out;
}

std::unique_ptr<common_chat_peg_mapper> mapper_of(common_chat_format format, common_chat_msg & message) {
    switch (format) {
        case COMMON_CHAT_FORMAT_PEG_GEMMA4:     return std::make_unique<common_chat_peg_gemma4_mapper>(message);
        case COMMON_CHAT_FORMAT_PEG_MINIMAX_M3: return std::make_unique<common_chat_peg_minimax_m3_mapper>(message);
        default:                                return std::make_unique<common_chat_peg_mapper>(message);
    }
}

// Says whether tool calls are written with an id.
bool has_call_ids(const common_peg_arena & parser) {
    for (size_t i = 0; i < parser.size(); ++i) {
        const auto * tag = std::get_if<common_peg_tag_parser>(&parser.get(i));
        if (tag != nullptr && tag->tag == common_chat_peg_builder::TOOL_ID) {
            return true;
        }
    }
    return false;
}

// Replaces the engine's common_chat_parse(), which does not report how far it parsed or whether the answer is complete,
// and which logs what it cannot parse.
common_json parsed_answer(const common_chat_parser_params & params, const std::string & text) {
    static const common_peg_arena content_only =
        build_chat_peg_parser([](common_chat_peg_builder & p) { return p.content(p.rest()) + p.end(); });
    common_chat_input input = params.generation_prompt;
    const size_t n_before = input.size();
    input.append(common_chat_input(text));

    common_peg_parse_context ctx(std::move(input.text), std::move(input.tokens), COMMON_PEG_PARSE_FLAG_LENIENT);
    const auto result = (params.parser.empty() ? content_only : params.parser).parse(ctx);
    if (result.fail()) {
        fail(LLAMA_SPEC_UNSUPPORTED, "the answer is not in the form that the chat template's parser expects");
    }
    common_chat_msg message;
    mapper_of(params.format, message)->from_ast(ctx.ast, result);
    using builder = common_chat_peg_builder;
    size_t told     = n_before;
    bool   is_named = false;   // whether the call has a name yet; without a name it is no call
    ctx.ast.visit(result, [&](const common_peg_ast_node & node) {
        if (node.tag == builder::TOOL || node.tag == builder::TOOL_OPEN) {
            is_named = false;
            return;
        }
        is_named = is_named || node.tag == builder::TOOL_NAME;
        if (node.tag == builder::CONTENT || node.tag == builder::REASONING || (is_named && !node.tag.empty())) {
            told = std::max(told, node.end);
        }
    });
    auto calls = common_json::array();
    for (const auto & call : message.tool_calls) {
        calls.push_back({ { "name", call.name }, { "arguments", call.arguments }, { "id", call.id } });
    }
    return { { "content", message.render_content() }, { "reasoning_content", message.reasoning_content },
             { "tool_calls", calls }, { "is_whole", result.success() && result.end >= ctx.input.size() },
             { "n_told", told - n_before } };
}

} // namespace

int llama_spec_template_new(const char * source, llama_spec_template ** out, char ** strings) {
    return guarded([&] {
        check_template(source);
        with_bounds(TEMPLATE_BOUNDS, [&] { with_code(LLAMA_SPEC_ARGUMENT, [&] {
            const auto tokens = jinja::lexer().tokenize(source);
            std::set<std::string> all;
            for (const auto & token : tokens.tokens) {
                if (token.t == jinja::token::string_literal) {
                    all.insert(token.value);
                }
            }
            auto made = std::make_unique<llama_spec_template>();
            made->program = jinja::parse_from_tokens(tokens);
            compared_strings compared;
            compared.read_all(made->program.body, false);
            *strings = text_out(common_json{ { "all", all }, { "compared", compared.found } }.dump_safe());
            *out     = made.release();
        }); });
    });
}

void llama_spec_template_free(llama_spec_template * program) {
    guarded([&] {
        with_deep_stack(CHAT_STACK_BYTES, [&] { delete program; });
    });
}

int llama_spec_template_run(llama_spec_template * program, const char * variables, int64_t time, char ** text) {
    return guarded([&] {
        with_bounds(CHAT_BOUNDS, [&] { with_code(LLAMA_SPEC_ARGUMENT, [&] {
            jinja::context ctx;
            ctx.current_time = (std::time_t) time;
            jinja::global_from_json(ctx, parsed(variables, "the chat"), false);
            std::string refusal;
            const jinja::func_handler refuse = [&](const jinja::func_args & args) -> jinja::value {
                refusal = args.get_pos(0)->as_string().str();
                throw jinja::raised_exception(refusal);
            };
            ctx.set_val("raise_exception", jinja::mk_val<jinja::value_func>("raise_exception", refuse));
            try {
                const auto output = jinja::runtime(ctx).execute(program->program);
                *text = text_out(common_json(jinja::runtime::gather_string_parts(output)->as_string().str()).dump_safe());
            } catch (const jinja::rethrown_exception &) {
                if (!refusal.empty()) {
                    fail(LLAMA_SPEC_ARGUMENT, "the template refuses these messages: " + refusal);
                }
                throw;
            }
        }); });
    });
}

int llama_spec_chat_new(llama_spec_model * model, const char * source, llama_spec_chat ** out) {
    return guarded([&] {
        model->state->home.check("this model was loaded");
        for (const char * text : { source, llama_model_chat_template(model->state->model, nullptr),
                                   llama_model_chat_template(model->state->model, "tool_use") }) {
            check_template(text);
        }
        with_bounds(TEMPLATE_BOUNDS, [&] { with_code(LLAMA_SPEC_ARGUMENT, [&] {
            auto templates = common_chat_templates_init(model->state->model, source != nullptr ? source : "");
            *out = new llama_spec_chat{ model->state, std::move(templates) };
        }); });
    });
}

void llama_spec_chat_free(llama_spec_chat * chat) {
    guarded([&] {
        with_deep_stack(CHAT_STACK_BYTES, [&] { delete chat; });
    });
}

int llama_spec_chat_begin(llama_spec_chat * chat, const char * request, llama_spec_chat_session ** out, char ** answer) {
    return guarded([&] {
        with_bounds(CHAT_BOUNDS, [&] { with_code(LLAMA_SPEC_ARGUMENT, [&] {
            const llama_vocab * vocab = chat->model->vocab();
            const auto given   = parsed(request, "the request");
            schema_rules rules(given.value("schema_rules", common_json()));
            const auto inputs  = read_request(given, *chat);
            auto       applied = common_chat_templates_apply(chat->templates.get(), inputs);

            common_params_sampling sampling;
            sampling.grammar_lazy = applied.grammar_lazy;
            common_sampling_add_preserved_tokens(sampling, vocab, applied.preserved_tokens);
            common_sampling_add_grammar_triggers(sampling, vocab, applied.grammar_triggers);

            common_json json = {
                { "prompt", applied.prompt }, { "grammar", applied.grammar }, { "grammar_lazy", applied.grammar_lazy },
                { "stops", applied.additional_stops }, { "generation_prompt", applied.generation_prompt },
                { "format", common_chat_format_name(applied.format) }, { "supports_thinking", applied.supports_thinking },
                { "thinking_start", applied.thinking_start_tag }, { "thinking_ends", applied.thinking_end_tags },
                { "prefill", prefill(vocab, applied.generation_prompt) },
                { "object_arguments", common_chat_templates_get_caps(chat->templates.get()).at("supports_object_arguments") },
                { "has_call_ids", has_call_ids(applied.parser) }, { "unmade", rules.asked },
                { "preserved_tokens", std::vector<llama_token>(sampling.preserved_tokens.begin(), sampling.preserved_tokens.end()) },
            };
            write_triggers(sampling, json);

            auto session = std::make_unique<llama_spec_chat_session>();
            session->parser.format            = applied.format;
            session->parser.generation_prompt = common_chat_input_tokenize(vocab, applied.generation_prompt);
            session->parser.parser            = std::move(applied.parser);
            *answer = text_out(json.dump_safe());
            *out    = session.release();
        }); });
    });
}

void llama_spec_chat_session_free(llama_spec_chat_session * session) {
    guarded([&] { delete session; });
}

int llama_spec_chat_parse(llama_spec_chat_session * session, const char * text, int32_t n_bytes, char ** answer) {
    return guarded([&] {
        const std::string said(text, (size_t) n_bytes);
        std::string brackets = said;
        std::replace(brackets.begin(), brackets.end(), '\0', ' ');
        check_nesting(brackets.c_str(), "the answer");
        with_code(LLAMA_SPEC_UNSUPPORTED, [&] { *answer = text_out(parsed_answer(session->parser, said).dump_safe()); });
    });
}

void llama_spec_text_free(char * text) {
    delete[] text;
}

std::string llama_spec_number_text(double value) {
    std::string text;
    for (const int digits : { 15, 16, 17 }) {
        std::ostringstream out;
        out.imbue(std::locale::classic());
        out << std::setprecision(digits) << value;
        text = out.str();
        std::istringstream in(text);
        in.imbue(std::locale::classic());
        double read = 0;
        if (in >> read && read == value) {
            break;
        }
    }
    return text.find_first_not_of("-0123456789") == std::string::npos ? text + ".0" : text;
}
