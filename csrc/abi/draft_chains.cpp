// Extends drafts by one token per decode, all in one call; Python only decides whether each continues.

#include "abi/decoding.h"
#include "kernels/likeliest.h"

using namespace llama_spec;

namespace {

// The newest tokens of the drafts that continue.
struct step {
    std::vector<int32_t> chains, ids, pos, seq;
    std::vector<int8_t>  output;

    void add(int32_t chain, int32_t id, int32_t position, int32_t sequence) {
        chains.push_back(chain);
        ids.push_back(id);
        pos.push_back(position);
        seq.push_back(sequence);
        output.push_back(1);
    }

    llama_spec_batch batch() {
        llama_spec_batch out = {};
        out.n_tokens = (int32_t) ids.size();
        out.ids      = ids.data();
        out.pos      = pos.data();
        out.seq      = seq.data();
        out.output   = output.data();
        return out;
    }
};

} // namespace

int llama_spec_draft_chains(llama_spec_context * ctx, const llama_spec_chains * chains, llama_spec_next next, void * user) {
    return guarded([&] {
        context_call call(ctx);
        context_state & state = call.state;
        require(chains != nullptr && chains->ids != nullptr && chains->pos != nullptr && chains->seq != nullptr && next != nullptr,
                "there are no drafts to extend");
        step now;
        for (int32_t i = 0; i < chains->n; ++i) {
            now.add(i, chains->ids[i], chains->pos[i], chains->seq[i]);
        }
        while (!now.ids.empty()) {
            decode(state, now.batch(), false);
            step then;
            for (size_t i = 0; i < now.ids.size(); ++i) {
                int32_t id = -1;
                float   p  = 0.0f;
                pyllama_spec::likeliest(logits_of(state, (int32_t) i), state.model->n_vocab(), chains->counterparts, 1, &id, &p);
                if (next(user, now.chains[i], id, p) && id >= 0) {
                    then.add(now.chains[i], id, now.pos[i] + 1, now.seq[i]);
                }
            }
            now = std::move(then);
        }
    });
}
