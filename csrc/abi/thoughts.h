// Which tokens of an answer belong to a thought: a grammar that waits for its trigger is not shown them, since a call that
// a thought merely mentions is none. Looked for in the text, as models spell tags in more than one way.
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

    // The tokens that the grammar is shown now that this one is committed, whose text is `piece`: none within a thought.
    // Those that end one are shown, for in some templates a call ends the thought.
    std::vector<int32_t> shown(int32_t id, const std::string & piece) {
        if (start.empty()) {
            return { id };
        }
        const bool was_open = is_open;
        size_t at_end = std::string::npos;   // where in `text` the tag stands that has ended a thought
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

    // Keeps what a tag can still begin in.
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
        // Of a token that is kept all its text is, but for a tag in it that counts already.
        text.erase(0, n_gone);
        n_done = n_done > n_gone ? n_done - n_gone : 0;
    }

    std::string text;                               // that of `recent`
    size_t      n_done = 0;                         // bytes of it that tags have taken already
    std::vector<std::pair<int32_t, size_t>> recent; // tokens, and how many bytes each has
};

} // namespace llama_spec
