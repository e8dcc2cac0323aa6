#include "checks/token_chars.h"

#include "checks/utf8_step.h"

#include "llama-vocab.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>

namespace llama_spec {

namespace {

constexpr uint32_t N_ASCII = 128;

// The first characters that a stack accepts. Tokens that begin with other characters are forbidden without further
// checks.
struct first_chars {
    std::array<bool, N_ASCII> ascii{};
    bool all = false;   // the stack expects a token, not a character
};

void add_first(const llama_grammar_element * pos, first_chars & out) {
    if (pos->type != LLAMA_GRETYPE_CHAR && pos->type != LLAMA_GRETYPE_CHAR_NOT && pos->type != LLAMA_GRETYPE_CHAR_ANY) {
        out.all = true;
        return;
    }
    const bool wanted = pos->type != LLAMA_GRETYPE_CHAR_NOT;
    std::array<bool, N_ASCII> named{};
    do {
        const bool is_range = pos[1].type == LLAMA_GRETYPE_CHAR_RNG_UPPER;
        if (pos->type == LLAMA_GRETYPE_CHAR_ANY) {
            named.fill(true);
        } else {
            for (uint32_t c = pos->value; c < N_ASCII && c <= (is_range ? pos[1].value : pos->value); ++c) {
                named[c] = true;
            }
        }
        pos += is_range ? 2 : 1;
    } while (pos->type == LLAMA_GRETYPE_CHAR_ALT);
    for (uint32_t c = 0; c < N_ASCII; ++c) {
        out.ascii[c] = out.ascii[c] || named[c] == wanted;
    }
}

} // namespace

token_chars::token_chars(const llama_vocab * vocab) {
    const int32_t n = llama_vocab_n_tokens(vocab);
    for (llama_token id = 0; id < n; ++id) {
        const std::string & piece = vocab->token_to_piece(id);
        const bool is_end  = llama_vocab_is_eog(vocab, id);
        kinds.push_back(is_end ? kind::END : piece.empty() || piece[0] == 0 ? kind::NONE : kind::TEXT);
        begin.push_back(chars.size());
        uint32_t value    = 0;
        int      n_remain = 0;
        // As the engine reads it: up to a 0 byte; invalid UTF-8 gives no characters.
        for (const char * c = piece.c_str(); *c != 0; ++c) {
            if (!utf8_step(value, n_remain, (uint8_t) *c)) {
                chars.resize(begin.back());
                value    = 0;
                n_remain = -1;
                break;
            }
            if (n_remain == 0) {
                chars.push_back(value);
            }
        }
        chars.push_back(0);
        partial.push_back({ value, n_remain });
    }
}

bool token_chars::mask(const llama_grammar & grammar, std::vector<llama_token_data> & row) const {
    if (grammar.awaiting_trigger || grammar.partial_utf8.n_remain != 0 || grammar.stacks.empty() || row.size() != kinds.size()) {
        return false;
    }
    first_chars first;
    bool may_end = false;
    for (const auto & stack : grammar.stacks) {
        if (stack.empty()) {
            may_end = true;
        } else {
            add_first(stack.back(), first);
        }
    }
    constexpr float FORBIDDEN = -std::numeric_limits<float>::infinity();
    llama_grammar_candidates left;
    for (size_t i = 0; i < row.size(); ++i) {
        const uint32_t c = chars[begin[i]];
        if (kinds[i] == kind::END ? !may_end : kinds[i] == kind::NONE) {
            row[i].logit = FORBIDDEN;
        } else if (kinds[i] == kind::TEXT) {
            if (!first.all && c != 0 && c < N_ASCII && !first.ascii[c]) {
                row[i].logit = FORBIDDEN;
            } else {
                left.push_back({ i, chars.data() + begin[i], partial[i], (llama_token) i });
            }
        }
    }
    for (const auto & stack : grammar.stacks) {
        if (left.empty()) {
            break;
        }
        left = llama_grammar_reject_candidates_for_stack(grammar.rules, stack, left);
    }
    for (const auto & one : left) {
        row[one.index].logit = FORBIDDEN;
    }
    return true;
}

} // namespace llama_spec
