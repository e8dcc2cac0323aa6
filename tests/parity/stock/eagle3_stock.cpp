// What stock llama.cpp drafts with an EAGLE-3 head, round after round, along a given text: its own encoder and
// decoder, fed as its server feeds them. Built and run by tests/parity/stock/compare.py.
//
//     eagle3_stock TARGET.gguf DRAFT.gguf N_DRAFT N_PROMPT ID ID ...
//
// One line per round: the drafted ids after the text's first N_PROMPT, N_PROMPT + 1, ... tokens.

#include "llama.h"
#include "llama-ext.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

static void require(bool ok, const char * what) {
    if (!ok) {
        std::fprintf(stderr, "eagle3_stock: %s\n", what);
        std::exit(1);
    }
}

struct batch {
    llama_batch b;
    batch(int n, int n_embd, bool with_ids) {
        b = llama_batch_init(n, n_embd, 1);
        if (with_ids) {
            b.token = b.token != nullptr ? b.token : (llama_token *) std::malloc(sizeof(llama_token) * (size_t) n);
        }
        b.n_tokens = 0;
    }
    void add(llama_token id, const float * row, size_t n_row, llama_pos pos, bool output) {
        const int i = b.n_tokens++;
        if (b.token != nullptr) {
            b.token[i] = id;
        }
        if (b.embd != nullptr) {
            std::copy(row, row + n_row, b.embd + (size_t) i * n_row);
        }
        b.pos[i] = pos;
        b.n_seq_id[i] = 1;
        b.seq_id[i][0] = 0;
        b.logits[i] = output;
    }
};

int main(int argc, char ** argv) {
    require(argc > 6, "usage: eagle3_stock TARGET DRAFT N_DRAFT N_PROMPT ID ID ...");
    const int n_draft = std::atoi(argv[3]), n_prompt = std::atoi(argv[4]);
    std::vector<llama_token> ids;
    for (int i = 5; i < argc; ++i) {
        ids.push_back(std::atoi(argv[i]));
    }
    const int n = (int) ids.size();

    llama_log_set([](ggml_log_level level, const char * text, void *) {
        if (level >= GGML_LOG_LEVEL_ERROR) {
            std::fputs(text, stderr);
        }
    }, nullptr);
    llama_backend_init();
    llama_model * target = llama_model_load_from_file(argv[1], llama_model_default_params());
    llama_model * draft  = llama_model_load_from_file(argv[2], llama_model_default_params());
    require(target != nullptr && draft != nullptr, "a model cannot be loaded");

    llama_context_params params = llama_context_default_params();
    params.n_ctx = params.n_batch = params.n_ubatch = (uint32_t) n + 64;
    params.n_threads = params.n_threads_batch = 1;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    llama_context * ctx_target = llama_init_from_model(target, params);
    params.ctx_other = ctx_target;
    llama_context * ctx_draft = llama_init_from_model(draft, params);
    require(ctx_target != nullptr && ctx_draft != nullptr, "a context cannot be made");

    const int n_layers = (int) llama_model_target_layer_ids_n(draft);
    const int32_t * layers = llama_model_target_layer_ids(draft);
    const size_t n_target = (size_t) llama_model_n_embd(target), n_own = (size_t) llama_model_n_embd(draft);
    for (int k = 0; k < n_layers; ++k) {
        llama_set_embeddings_layer_inp(ctx_target, (uint32_t) layers[k], true);
    }
    llama_set_embeddings_nextn(ctx_draft, true, true);

    batch text(n, 0, true);
    for (int i = 0; i < n; ++i) {
        text.add(ids[(size_t) i], nullptr, 0, i, true);
    }
    require(llama_decode(ctx_target, text.b) == 0, "the target cannot decode the text");

    const size_t n_features = n_target * (size_t) n_layers;
    batch features(n, (int) n_features, false);
    std::vector<float> row(n_features);
    for (int i = 0; i < n; ++i) {
        for (int k = 0; k < n_layers; ++k) {
            const float * from = llama_get_embeddings_layer_inp(ctx_target, (uint32_t) layers[k]) + (size_t) i * n_target;
            std::copy(from, from + n_target, row.begin() + (long) (k * n_target));
        }
        features.add(0, row.data(), n_features, i, true);
    }
    require(llama_encode(ctx_draft, features.b) == 0, "the draft cannot encode the features");
    const float * encoded = llama_get_embeddings_nextn(ctx_draft);
    std::vector<float> g(encoded, encoded + (size_t) n * n_own);

    const int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(draft));
    int n_fed = 0;
    for (int known = n_prompt; known <= n; ++known) {
        llama_memory_seq_rm(llama_get_memory(ctx_draft), 0, n_fed, -1);
        // The last pair goes alone, as in the server: a batch of several with one output gives the logits of its
        // first row there.
        for (const int end : { known - 2, known - 1 }) {
            batch pairs(n, (int) n_own, true);
            for (; n_fed < end; ++n_fed) {
                pairs.add(ids[(size_t) n_fed + 1], g.data() + (size_t) n_fed * n_own, n_own, n_fed, n_fed == known - 2);
            }
            require(pairs.b.n_tokens == 0 || llama_decode(ctx_draft, pairs.b) == 0, "the draft cannot decode");
        }
        int last = 0;
        for (int step = 0; step < n_draft; ++step) {
            const float * logits = llama_get_logits_ith(ctx_draft, last);
            const int id = (int) (std::max_element(logits, logits + n_vocab) - logits);
            std::printf("%d%c", id, step + 1 < n_draft ? ' ' : '\n');
            if (step + 1 < n_draft) {
                const float * own = llama_get_embeddings_nextn_ith(ctx_draft, last);
                const std::vector<float> kept(own, own + n_own);
                batch one(1, (int) n_own, true);
                one.add(id, kept.data(), n_own, n_fed + step, true);
                require(llama_decode(ctx_draft, one.b) == 0, "the draft cannot decode its own row");
                last = 0;
            }
        }
    }
    return 0;
}
