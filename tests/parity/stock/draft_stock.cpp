// What stock llama.cpp drafts with an EAGLE-3 head or a DFlash draft, round after round, along a given text: its own
// graphs, fed as its server feeds them. Built and run by tests/parity/stock/compare.py.
//
//     draft_stock TARGET.gguf DRAFT.gguf N_DRAFT N_PROMPT ID ID ...
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
        std::fprintf(stderr, "draft_stock: %s\n", what);
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

// What a round needs of the text: its tokens, and each token's features.
struct told {
    std::vector<llama_token> ids;
    std::vector<float> features;    // [n, n_features]
    size_t n_features;
    int n_draft, n_prompt;
};

static int likeliest(const float * logits, int n) {
    return (int) (std::max_element(logits, logits + n) - logits);
}

static int meta(const llama_model * model, const char * key, int otherwise) {
    char buf[32] = {};
    if (llama_model_meta_val_str(model, key, buf, sizeof(buf)) < 0) {
        return otherwise;
    }
    return std::string(buf) == "true" ? 1 : std::atoi(buf);
}

static void rounds_of_eagle3(llama_context * ctx, const told & t) {
    const llama_model * draft = llama_get_model(ctx);
    const int n = (int) t.ids.size(), n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(draft));
    const size_t n_own = (size_t) llama_model_n_embd(draft);
    llama_set_embeddings_nextn(ctx, true, true);
    batch features(n, (int) t.n_features, false);
    for (int i = 0; i < n; ++i) {
        features.add(0, t.features.data() + (size_t) i * t.n_features, t.n_features, i, true);
    }
    require(llama_encode(ctx, features.b) == 0, "the draft cannot encode the features");
    const float * encoded = llama_get_embeddings_nextn(ctx);
    const std::vector<float> g(encoded, encoded + (size_t) n * n_own);

    int n_fed = 0;
    for (int known = t.n_prompt; known <= n; ++known) {
        llama_memory_seq_rm(llama_get_memory(ctx), 0, n_fed, -1);
        // The last pair goes alone, as in the server: a batch of several with one output gives the logits of its
        // first row there.
        for (const int end : { known - 2, known - 1 }) {
            batch pairs(n, (int) n_own, true);
            for (; n_fed < end; ++n_fed) {
                pairs.add(t.ids[(size_t) n_fed + 1], g.data() + (size_t) n_fed * n_own, n_own, n_fed, n_fed == known - 2);
            }
            require(pairs.b.n_tokens == 0 || llama_decode(ctx, pairs.b) == 0, "the draft cannot decode");
        }
        for (int step = 0; step < t.n_draft; ++step) {
            const int id = likeliest(llama_get_logits_ith(ctx, 0), n_vocab);
            std::printf("%d%c", id, step + 1 < t.n_draft ? ' ' : '\n');
            if (step + 1 < t.n_draft) {
                const float * own = llama_get_embeddings_nextn_ith(ctx, 0);
                const std::vector<float> kept(own, own + n_own);
                batch one(1, (int) n_own, true);
                one.add(id, kept.data(), n_own, n_fed + step, true);
                require(llama_decode(ctx, one.b) == 0, "the draft cannot decode its own row");
            }
        }
    }
}

static void rounds_of_dflash(llama_context * ctx, const told & t) {
    const llama_model * draft = llama_get_model(ctx);
    const llama_vocab * vocab = llama_model_get_vocab(draft);
    const int n = (int) t.ids.size(), n_vocab = llama_vocab_n_tokens(vocab), n_own = llama_model_n_embd(draft);
    const int top_k = llama_model_dflash_selector_top_k(draft);
    const bool has_chain = meta(draft, "dflash.has_confidence_head", -1) >= 0;
    const int first = has_chain && meta(draft, "dflash.sample_from_anchor", 1) ? 0 : 1;
    llama_set_causal_attn(ctx, meta(draft, "dflash.attention.causal", 0) != 0);
    llama_set_embeddings_nextn(ctx, true, top_k == 0);
    int n_fed = 0;
    for (int known = t.n_prompt; known <= n; ++known) {
        llama_memory_seq_rm(llama_get_memory(ctx), 0, n_fed, -1);
        batch rows(n, (int) t.n_features, false);
        for (; n_fed < known - 1; ++n_fed) {
            rows.add(0, t.features.data() + (size_t) n_fed * t.n_features, t.n_features, n_fed, false);
        }
        require(rows.b.n_tokens == 0 || llama_decode(ctx, rows.b) == 0, "the draft cannot take the features");
        batch block(t.n_draft + first, 0, true);
        for (int i = 0; i < t.n_draft + first; ++i) {
            block.add(i == 0 ? t.ids[(size_t) known - 1] : llama_vocab_mask(vocab), nullptr, 0, known - 1 + i, top_k == 0);
        }
        require(llama_decode(ctx, block.b) == 0, "the draft cannot decode a block");
        int before = 0;
        for (int i = first; i < t.n_draft + first; ++i) {
            int id = 0;
            if (top_k > 0) {
                const float * row = llama_get_embeddings_nextn(ctx) + (size_t) i * (size_t) n_own;
                before = likeliest(row + top_k + before * top_k, top_k);
                id = (int) row[before];
            } else {
                id = likeliest(llama_get_logits_ith(ctx, i), n_vocab);
            }
            std::printf("%d%c", id, i + 1 < t.n_draft + first ? ' ' : '\n');
        }
    }
}

int main(int argc, char ** argv) {
    require(argc > 6, "usage: draft_stock TARGET DRAFT N_DRAFT N_PROMPT ID ID ...");
    told t;
    t.n_draft  = std::atoi(argv[3]);
    t.n_prompt = std::atoi(argv[4]);
    for (int i = 5; i < argc; ++i) {
        t.ids.push_back(std::atoi(argv[i]));
    }
    const int n = (int) t.ids.size();

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
    const size_t n_target = (size_t) llama_model_n_embd(target);
    for (int k = 0; k < n_layers; ++k) {
        llama_set_embeddings_layer_inp(ctx_target, (uint32_t) layers[k], true);
    }
    batch text(n, 0, true);
    for (int i = 0; i < n; ++i) {
        text.add(t.ids[(size_t) i], nullptr, 0, i, true);
    }
    require(llama_decode(ctx_target, text.b) == 0, "the target cannot decode the text");
    t.n_features = n_target * (size_t) n_layers;
    for (int i = 0; i < n; ++i) {
        for (int k = 0; k < n_layers; ++k) {
            const float * from = llama_get_embeddings_layer_inp(ctx_target, (uint32_t) layers[k]) + (size_t) i * n_target;
            t.features.insert(t.features.end(), from, from + n_target);
        }
    }
    char arch[32] = {};
    llama_model_meta_val_str(draft, "general.architecture", arch, sizeof(arch));
    (std::string(arch) == "dflash" ? rounds_of_dflash : rounds_of_eagle3)(ctx_draft, t);
    return 0;
}
