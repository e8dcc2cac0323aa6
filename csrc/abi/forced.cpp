// Text that the grammar forces: it can be drafted without a model.

#include "abi/grammar_copy.h"
#include "abi/handles.h"

#include "llama-grammar.h"

#include <memory>
#include <string>

using namespace llama_spec;

namespace {

using grammar_ptr = std::unique_ptr<llama_grammar, decltype(&llama_grammar_free_impl)>;

// The character that every continuation begins with; 0 if there are several, or if the text may end.
uint32_t forced_char(llama_grammar & grammar) {
    const llama_grammar_stacks & stacks = llama_grammar_get_stacks(&grammar);
    uint32_t found = 0;
    for (const auto & stack : stacks) {
        if (stack.empty() || stack.back()->type != LLAMA_GRETYPE_CHAR) {
            return 0;
        }
        const llama_grammar_element * next = stack.back() + 1;
        if (next->type == LLAMA_GRETYPE_CHAR_ALT || next->type == LLAMA_GRETYPE_CHAR_RNG_UPPER) {
            return 0;
        }
        if (found != 0 && found != stack.back()->value) {
            return 0;
        }
        found = stack.back()->value;
    }
    return found;
}

void append_utf8(std::string & out, uint32_t c) {
    if (c < 0x80) {
        out += (char) c;
    } else if (c < 0x800) {
        out += (char) (0xC0 | (c >> 6));
        out += (char) (0x80 | (c & 0x3F));
    } else if (c < 0x10000) {
        out += (char) (0xE0 | (c >> 12));
        out += (char) (0x80 | ((c >> 6) & 0x3F));
        out += (char) (0x80 | (c & 0x3F));
    } else {
        out += (char) (0xF0 | (c >> 18));
        out += (char) (0x80 | ((c >> 12) & 0x3F));
        out += (char) (0x80 | ((c >> 6) & 0x3F));
        out += (char) (0x80 | (c & 0x3F));
    }
}

} // namespace

int32_t llama_spec_sampler_forced(llama_spec_sampler * sampler, char * buf, int32_t size) {
    int32_t n = 0;
    const int rc = guarded([&] {
        auto & s = open_sampler(sampler);
        in_use lock(s.busy, "the sampler");
        require(buf != nullptr && size >= 0, "there is no place for the text");
        // After a token that ends within a character nothing is forced.
        if (!s.shadow || skips_grammar(s) || s.shadow->partial_utf8.n_remain != 0 || forced_char(*s.shadow) == 0) {
            return;
        }
        grammar_ptr walk(copy_grammar(*s.shadow), llama_grammar_free_impl);
        std::string text;
        for (uint32_t c = forced_char(*walk); c != 0; c = forced_char(*walk)) {
            std::string one;
            append_utf8(one, c);
            if (text.size() + one.size() > (size_t) size) {
                break;
            }
            text += one;
            llama_grammar_accept(walk.get(), c);
        }
        std::copy(text.begin(), text.end(), buf);
        n = (int32_t) text.size();
    });
    return rc == LLAMA_SPEC_OK ? n : rc;
}
