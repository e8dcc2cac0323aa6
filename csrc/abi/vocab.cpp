#include "abi/handles.h"
#include "checks/tokenizer_bounds.h"

#include <climits>
#include <cstring>

using namespace llama_spec;

namespace {

bool in_range(const llama_spec_model * model, int32_t id) {
    return id >= 0 && id < model->state->n_vocab();
}

} // namespace

int32_t llama_spec_tokenize(llama_spec_model * model, const char * text, int32_t n_bytes, int32_t * out, int32_t n_max,
                            bool add_special, bool parse_special) {
    int32_t n = 0;
    const int rc = guarded([&] {
        const llama_vocab * vocab = model->state->vocab();
        tokenize_bounded(vocab, text, (size_t) n_bytes, [&] {
            n = llama_tokenize(vocab, text, n_bytes, out, n_max, add_special, parse_special);
        });
        for (int32_t i = 0; i < n; ++i) {
            if (!in_range(model, out[i])) {
                fail(LLAMA_SPEC_ENGINE, "the vocabulary has no token for a part of the text, and none for unknown text");
            }
        }
    });
    return rc == LLAMA_SPEC_OK ? n : INT32_MIN - rc;
}

int32_t llama_spec_token_to_piece(llama_spec_model * model, int32_t id, char * buf, int32_t size, bool special) {
    return guarded_or(INT32_MIN, [&] {
        return in_range(model, id) ? llama_token_to_piece(model->state->vocab(), id, buf, size, 0, special) : INT32_MIN;
    });
}

bool llama_spec_vocab_is_eog(llama_spec_model * model, int32_t id) {
    return guarded_or(false, [&] { return in_range(model, id) && llama_vocab_is_eog(model->state->vocab(), id); });
}

bool llama_spec_vocab_is_control(llama_spec_model * model, int32_t id) {
    return guarded_or(false, [&] { return in_range(model, id) && llama_vocab_is_control(model->state->vocab(), id); });
}

int32_t llama_spec_vocab_special(llama_spec_model * model, const char * name) {
    using getter = llama_token (*)(const llama_vocab *);
    static const struct { const char * name; getter get; } table[] = {
        { "bos", llama_vocab_bos }, { "eos", llama_vocab_eos }, { "eot", llama_vocab_eot },
        { "sep", llama_vocab_sep }, { "nl", llama_vocab_nl },   { "pad", llama_vocab_pad },
        { "mask", llama_vocab_mask }, { "fim_pre", llama_vocab_fim_pre }, { "fim_suf", llama_vocab_fim_suf },
        { "fim_mid", llama_vocab_fim_mid },
    };
    for (const auto & entry : table) {
        if (std::strcmp(entry.name, name) == 0) {
            return entry.get(model->state->vocab());
        }
    }
    return -1;
}

bool llama_spec_vocab_adds_bos(llama_spec_model * model) {
    return llama_vocab_get_add_bos(model->state->vocab());
}

bool llama_spec_vocab_adds_eos(llama_spec_model * model) {
    return llama_vocab_get_add_eos(model->state->vocab());
}

bool llama_spec_vocab_adds_sep(llama_spec_model * model) {
    return llama_vocab_get_add_sep(model->state->vocab());
}
