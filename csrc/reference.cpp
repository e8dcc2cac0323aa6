// Raw decoding with nothing of ours in it: what the loop's overhead is measured against.

#include "handles.h"

using namespace llama_spec;

int llama_spec_reference_decode(llama_spec_context * ctx, int32_t seq, int32_t pos, int32_t id, int32_t n, int32_t * out,
                                double * seconds) {
    return guarded([&] {
        context_call call(ctx);
        require(n > 0 && id >= 0 && id < call.state.model->n_vocab(), "an id of the vocabulary and a positive count are needed");
        const int32_t n_vocab = call.state.model->n_vocab();
        int32_t      one      = 1;
        int8_t       output   = 1;
        int32_t *    seq_ptr  = &seq;
        llama_batch  batch    = { 1, &id, nullptr, &pos, &one, &seq_ptr, &output };
        const int64_t start   = ggml_time_us();
        for (int32_t i = 0; i < n; ++i, ++pos) {
            if (llama_decode(call.state.ctx, batch) != 0) {
                fail(LLAMA_SPEC_FULL, "the reference decode failed");
            }
            const float * logits = llama_get_logits_ith(call.state.ctx, 0);
            int32_t best = 0;
            for (int32_t k = 1; k < n_vocab; ++k) {
                best = logits[k] > logits[best] ? k : best;
            }
            out[i] = id = best;
        }
        *seconds = (double) (ggml_time_us() - start) * 1e-6;
        call.state.n_rows = 1;
    });
}
