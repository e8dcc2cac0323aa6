// Chats: a JSON schema, a template, a request, or a model's answer. The first byte chooses which of these the input
// replaces; the rest of the chat is valid.

#include "fuzz/fuzz.h"

namespace {

struct free_chat    { void operator()(llama_spec_chat * c)         const { llama_spec_chat_free(c); } };
struct free_session { void operator()(llama_spec_chat_session * s) const { llama_spec_chat_session_free(s); } };
struct free_text    { void operator()(char * t)                    const { llama_spec_text_free(t); } };

using chat    = std::unique_ptr<llama_spec_chat, free_chat>;
using session = std::unique_ptr<llama_spec_chat_session, free_session>;
using text    = std::unique_ptr<char, free_text>;

constexpr char TEMPLATE[] =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if tools %}{% for t in tools %}{{ t | tojson }}{% endfor %}{% endif %}<|im_start|>assistant\n";
constexpr char REQUEST[] =
    R"({"messages": [{"role": "user", "content": "a"}], "tool_choice": "auto", "tools": [{"type": "function", "function":)"
    R"( {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}}}]})";

chat opened(llama_spec_model * m, const char * source) {
    llama_spec_chat * out = nullptr;
    llama_spec_chat_new(m, source, &out);
    return chat(out);
}

session begun(const chat & c, const char * request) {
    llama_spec_chat_session * out = nullptr;
    char * answer = nullptr;
    if (c) {
        llama_spec_chat_begin(c.get(), request, &out, &answer);
    }
    const text owner(answer);
    return session(out);
}

void parse(const session & s, const std::string & written) {
    char * answer = nullptr;
    if (s) {
        llama_spec_chat_parse(s.get(), written.data(), (int32_t) written.size(), &answer);
    }
    const text owner(answer);
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t * data, size_t size) {
    static const fuzz::model m = fuzz::load(fuzz::model_path("gpt2"), true);
    static const chat    sound   = opened(m.get(), TEMPLATE);
    static const session waiting = begun(sound, REQUEST);
    if (!waiting) {
        std::fprintf(stderr, "the sound chat: %s\n", llama_spec_last_error());
        std::exit(2);
    }
    if (size < 1) {
        return 0;
    }
    const std::string input(reinterpret_cast<const char *>(data) + 1, size - 1);
    switch (data[0] % 4) {
        case 0: {
            llama_spec_template * made = nullptr;
            char * strings = nullptr, * written = nullptr;
            if (llama_spec_template_new(input.c_str(), &made, &strings) == LLAMA_SPEC_OK) {
                llama_spec_template_run(made, REQUEST, 0, &written);
            }
            llama_spec_template_free(made);
            const text first(strings), second(written);
            break;
        }
        case 1: parse(begun(opened(m.get(), input.c_str()), REQUEST), "<tool_call>{\"name\": \"f\""); break;
        case 2: parse(begun(sound, input.c_str()), "a"); break;
        default: parse(waiting, input);
    }
    return 0;
}
