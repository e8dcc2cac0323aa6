// Finds which tokens of an answer belong to a thought. A grammar that waits for its trigger does not see them, since a
// thought may mention a call without making one. The search is in the text, as models can write a tag with different
// tokens.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace llama_spec {

struct thoughts {
    std::string              start;
    std::vector<std::string> ends;
    bool                     is_open = false;

    // Returns the tokens to show to the grammar after committing `id`, whose text is `piece`: none within a thought.
    // Tokens that end a thought are shown, since in some templates a call ends the thought.
    std::vector<int32_t> shown(int32_t id, const std::string & piece) {
        if (start.empty()) {
            return { id };
        }
        const bool was_open = is_open;
        size_t at_end = std::string::npos;   // position in `text` of the tag that ended a thought
        text += piece;
        recent.emplace_back(id, piece.size());
        for (size_t at = n_done;;) {
            size_t n = 0;
            const size_t found = is_open ? first_end(at, n) : text.find(start, at);
            if (found == std::string::npos) {
                break;
            }
            at_end  = is_open ? found : std::string::npos;
            at      = found + (is_open ? n : start.size());
            is_open = !is_open;
            n_done  = at;
        }
        std::vector<int32_t> out;
        if (!is_open && at_end != std::string::npos) {
            size_t begin = 0;
            for (const auto & [one, n_bytes] : recent) {
                if (begin + n_bytes > at_end) {
                    out.push_back(one);
                }
                begin += n_bytes;
            }
        } else if (!was_open) {
            out.push_back(id);
        }
        forget();
        return out;
    }

private:
    size_t first_end(size_t at, size_t & n) const {
        size_t best = std::string::npos;
        for (const auto & end : ends) {
            const size_t found = end.empty() ? std::string::npos : text.find(end, at);
            if (found < best) {
                best = found;
                n    = end.size();
            }
        }
        return best;
    }

    // Keeps only the text in which a tag could still begin.
    void forget() {
        size_t longest = start.size();
        for (const auto & end : ends) {
            longest = std::max(longest, end.size());
        }
        const size_t keep = std::min(longest - 1, text.size() - std::min(n_done, text.size()));
        size_t n_tokens = 0, n_gone = 0;
        while (n_tokens < recent.size() && n_gone + recent[n_tokens].second <= text.size() - keep) {
            n_gone += recent[n_tokens++].second;
        }
        recent.erase(recent.begin(), recent.begin() + (std::ptrdiff_t) n_tokens);
        // A token's text is kept whole; n_done excludes the part that tags have used.
        text.erase(0, n_gone);
        n_done = n_done > n_gone ? n_done - n_gone : 0;
    }

    std::string text;                               // the text of `recent`
    size_t      n_done = 0;                         // bytes of it that tags have used
    std::vector<std::pair<int32_t, size_t>> recent; // tokens, each with its number of bytes
};

} // namespace llama_spec
