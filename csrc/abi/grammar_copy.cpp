#include "abi/grammar_copy.h"

#include "llama-grammar.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

namespace llama_spec {

llama_grammar * copy_grammar(const llama_grammar & from) {
    std::unique_ptr<llama_grammar> to(new llama_grammar {
        from.vocab, from.rules, from.stacks, from.partial_utf8, from.lazy, from.awaiting_trigger, from.trigger_buffer,
        from.trigger_buffer_positions, from.trigger_tokens, from.trigger_patterns,
    });
    std::vector<size_t> order(from.rules.size());
    for (size_t i = 0; i < order.size(); ++i) {
        order[i] = i;
    }
    const std::less<> before;   // compares pointers into different vectors
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return before(from.rules[a].data(), from.rules[b].data()); });
    for (auto & stack : to->stacks) {
        for (auto & place : stack) {
            const auto next = std::upper_bound(order.begin(), order.end(), place,
                    [&](const llama_grammar_element * p, size_t i) { return before(p, from.rules[i].data()); });
            const size_t i = *(next - 1);
            place = to->rules[i].data() + (place - from.rules[i].data());
        }
    }
    return to.release();
}

} // namespace llama_spec
