#include "checks/hidden_tokens.h"

#include "llama-vocab.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <unordered_map>

namespace llama_spec {

namespace {

// A vocabulary has some thousand of these names, and a grammar may have half a million bytes: an index by the first
// characters makes the search fast.
constexpr size_t N_HEAD = 3;

} // namespace

std::vector<bool> hidden_tokens(const llama_vocab * vocab, const char * grammar) {
    if (std::strstr(grammar, "<[") != nullptr || std::strstr(grammar, "!<") != nullptr) {
        return {};
    }
    const int32_t n = llama_vocab_n_tokens(vocab);
    std::vector<bool> hidden((size_t) n, false);
    std::unordered_map<std::string, std::vector<llama_token>> by_head;
    for (llama_token id = 0; id < n; ++id) {
        const std::string & name = vocab->token_to_piece(id);
        if (llama_vocab_is_control(vocab, id) && !llama_vocab_is_eog(vocab, id) && !name.empty()) {
            hidden[(size_t) id] = true;
            by_head[name.substr(0, N_HEAD)].push_back(id);
        }
    }
    if (by_head.empty()) {
        return {};
    }
    const std::string text = grammar;
    for (size_t at = 0; at < text.size(); ++at) {
        for (size_t n_head = 1; n_head <= std::min(N_HEAD, text.size() - at); ++n_head) {
            const auto found = by_head.find(text.substr(at, n_head));
            if (found == by_head.end()) {
                continue;
            }
            for (const llama_token id : found->second) {
                const std::string & name = vocab->token_to_piece(id);
                if (text.compare(at, name.size(), name) == 0) {
                    hidden[(size_t) id] = false;
                }
            }
        }
    }
    return hidden;
}

} // namespace llama_spec
