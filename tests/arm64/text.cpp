// A model's texts with drafts equal those without, and a prompt read in parts gives the logits of one read whole. Each
// batch verifies a draft whose every fifth token is wrong.
//
//     text MODEL [N_TOKENS]
#include "abi/llama-spec.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

using Ids = std::vector<int32_t>;

constexpr const char * PROMPTS[] = {
    "The capital of France is", "def quicksort(numbers):\n", "Once upon a time, in a small village by the sea,",
    "1, 2, 3, 4, 5, 6,", "SELECT name, price FROM", "Dear Sir or Madam,\n\nI am writing to",
};
constexpr int32_t N_LONG = 80;
// The first parts of a prompt of N_LONG tokens.
constexpr int32_t CUTS[] = { 32, 33, 47, 70 };

void must(int status) {
    if (status != 0) {
        std::printf("%s\n", llama_spec_last_error());
        std::exit(2);
    }
}

struct Sequence {
    llama_spec_context * context;
    int32_t              n_vocab;
    int32_t              n_past = 0;

    // The logits of each of these tokens, or of the last one.
    std::vector<const float *> decode(const Ids & ids, bool is_prompt = false) {
        const int32_t n = (int32_t) ids.size();
        Ids pos(n), seq(n, 0);
        for (int32_t & at : pos) {
            at = n_past++;
        }
        std::vector<int8_t> output(n, !is_prompt);
        output.back() = 1;
        llama_spec_batch batch = {};
        batch.n_tokens = n;
        batch.ids      = ids.data();
        batch.pos      = pos.data();
        batch.seq      = seq.data();
        batch.output   = output.data();
        must(llama_spec_decode(context, &batch, false));
        std::vector<const float *> rows(n);
        for (int32_t i = is_prompt ? n - 1 : 0; i < n; ++i) {
            must(llama_spec_logits(context, i, &rows[i]));
        }
        return rows;
    }

    int32_t best(const float * row) const {
        return (int32_t) (std::max_element(row, row + n_vocab) - row);
    }

    void keep(int32_t n) {
        must(llama_spec_seq_rm(context, 0, n, -1));
        n_past = n;
    }

    Ids plain(const Ids & prompt, int32_t n) {
        keep(0);
        Ids out = { best(decode(prompt, true).back()) };
        while ((int32_t) out.size() < n) {
            out.push_back(best(decode({ out.back() })[0]));
        }
        return out;
    }

    // The same with drafts of n_draft tokens, which `known` is the source of.
    Ids drafted(const Ids & prompt, const Ids & known, int32_t n_draft, int32_t & n_accepted) {
        keep(0);
        const int32_t n = (int32_t) known.size();
        Ids out = { best(decode(prompt, true).back()) };
        while ((int32_t) out.size() < n) {
            Ids batch = { out.back() };
            for (int32_t i = (int32_t) out.size(); i < n && (int32_t) batch.size() <= n_draft; ++i) {
                batch.push_back(i % 5 == 4 ? (known[i] + 1) % n_vocab : known[i]);
            }
            const int32_t before = n_past;
            const std::vector<const float *> rows = decode(batch);
            size_t i = 0;
            for (; i < batch.size() && (int32_t) out.size() < n; ++i) {
                out.push_back(best(rows[i]));
                if (i + 1 == batch.size() || batch[i + 1] != out.back()) {
                    break;
                }
                ++n_accepted;
            }
            keep(before + (int32_t) std::min(i + 1, batch.size()));
        }
        return out;
    }
};

}  // namespace

int main(int argc, char ** argv) {
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    const int32_t n = argc > 2 ? std::atoi(argv[2]) : 24;
    llama_spec_model_params params = {};
    params.use_mmap = true;
    params.repack   = true;
    llama_spec_model * model;
    must(llama_spec_model_load(argv[1], &params, &model));
    llama_spec_model_info info;
    must(llama_spec_model_get_info(model, &info));
    std::printf("%s; %llu of %llu bytes repacked\n", llama_spec_row_kernels(), (unsigned long long) info.repacked_bytes,
        (unsigned long long) info.size_bytes);
    llama_spec_context_params sizes = {};
    sizes.n_ctx = sizes.n_batch = sizes.n_ubatch = sizes.n_outputs_max = 256;
    sizes.n_seq_max = 1;
    sizes.n_threads = sizes.n_threads_batch = 2;
    sizes.flash_attn = 0;  // as Python has it: with it, batches of more than 32 tokens round otherwise
    sizes.type_k = sizes.type_v = 1;  // F16
    sizes.rope_scaling_type = sizes.pooling_type = sizes.attention_type = -1;
    sizes.yarn_ext_factor = sizes.yarn_attn_factor = sizes.yarn_beta_fast = sizes.yarn_beta_slow = -1;
    Sequence sequence = { nullptr, info.n_vocab };
    must(llama_spec_context_new(model, &sizes, nullptr, &sequence.context));

    int n_different = 0;
    Ids all;
    for (const char * text : PROMPTS) {
        Ids prompt(256);
        prompt.resize(llama_spec_tokenize(model, text, (int32_t) std::strlen(text), prompt.data(), 256, true, true));
        const Ids plain = sequence.plain(prompt, n);
        int32_t n_accepted = 0;
        for (int32_t n_draft : { 4, 9 }) {
            n_different += sequence.drafted(prompt, plain, n_draft, n_accepted) != plain;
        }
        std::string words;
        for (int32_t id : plain) {
            char piece[64];
            words.append(piece, std::max(llama_spec_token_to_piece(model, id, piece, sizeof(piece), true), 0));
            all.push_back(id);
        }
        std::printf("%d tokens of drafts accepted; %s...%s\n", n_accepted, text, words.c_str());
    }

    all.resize(N_LONG, 1);
    sequence.keep(0);
    const float * last = sequence.decode(all, true).back();
    const std::vector<float> whole(last, last + info.n_vocab);
    for (int32_t cut : CUTS) {
        sequence.keep(0);
        sequence.decode(Ids(all.begin(), all.begin() + cut), true);
        const float * row = sequence.decode(Ids(all.begin() + cut, all.end()), true).back();
        if (std::memcmp(row, whole.data(), whole.size() * sizeof(float)) != 0) {
            ++n_different;
            double most = 0;
            for (int32_t i = 0; i < info.n_vocab; ++i) {
                most = std::max(most, (double) std::abs(row[i] - whole[i]));
            }
            std::printf("%d + %d tokens DIFFER from %d at once by up to %.1e\n", cut, N_LONG - cut, N_LONG, most);
        }
    }
    std::printf("%d differences\n", n_different);
    return n_different != 0;
}
