// Images and sounds: the engine's projectors. It opens no files, and decodes none of images.
#include "abi/handles.h"

#ifdef PYLLAMA_SPEC_MEDIA

#include "checks/gguf_check.h"
#include "hooks/media_backend.h"

#include "mtmd.h"

#include <algorithm>
#include <chrono>
#include <string>

using namespace llama_spec;

namespace {

struct projector_state {
    std::shared_ptr<model_state> model;
    mtmd_context * ctx = nullptr;
    std::atomic<bool> cancelled{ false };
    std::atomic<bool> busy{ false };
    std::chrono::steady_clock::time_point asked;    // when a waiting signal was last looked for
    home_process home;
    ~projector_state() {
        if (ctx != nullptr) {
            mtmd_free(ctx);
        }
    }
    int32_t n_row() const { return llama_model_n_embd_inp(model->model); }
};

bool is_cancelled(void * user) {
    return is_exiting() || static_cast<projector_state *>(user)->cancelled.load(std::memory_order_relaxed);
}

// Called between two operations, on the thread that waits. Python answers whether a signal has come, for which it has to
// get its lock.
bool is_to_stop(void * user) {
    auto & state = *static_cast<projector_state *>(user);
    const auto now = std::chrono::steady_clock::now();
    if (is_cancelled(user) || now - state.asked < std::chrono::milliseconds(100)) {
        return is_cancelled(user);
    }
    state.asked = now;
    return wants_to_stop();
}

void check_state(projector_state & state) {
    state.home.check("this projector was loaded");
    if (is_exiting()) {
        fail(LLAMA_SPEC_EXITING, "the process is ending");
    }
    if (is_cancelled(&state)) {
        fail(LLAMA_SPEC_CANCELLED, "it was cancelled");
    }
}

// The engine reports by 0 or another number, and gives the reason in its log.
void check_done(projector_state & state, int32_t rc, const char * what) {
    if (rc != 0) {
        check_state(state);
        fail(LLAMA_SPEC_ENGINE, what);
    }
}

void log_as_the_engine() {
    ggml_log_callback callback = nullptr;
    void * user = nullptr;
    llama_log_get(&callback, &user);
    mtmd_log_set(callback, user);
}

mtmd_context_params engine_params(const llama_spec_projector_params & in) {
    mtmd_context_params out = mtmd_context_params_default();
    out.use_gpu          = in.use_gpu;
    out.print_timings    = false;
    out.n_threads        = in.n_threads;
    out.warmup           = false;
    out.image_min_tokens = in.image_min_tokens;
    out.image_max_tokens = in.image_max_tokens;
    return out;
}

} // namespace

struct llama_spec_projector {
    std::shared_ptr<projector_state> state;
};

struct llama_spec_media {
    std::shared_ptr<projector_state> projector;
    mtmd::input_chunks_ptr chunks;
};

namespace {

const mtmd_input_chunk * part_of(const llama_spec_media * media, int32_t i) {
    require(i >= 0 && (size_t) i < mtmd_input_chunks_size(media->chunks.get()), "there is no such part");
    return mtmd_input_chunks_get(media->chunks.get(), (size_t) i);
}

void prepare(llama_spec_projector * projector, mtmd::bitmap_ptr bitmap, llama_spec_media ** out) {
    projector_state & state = *projector->state;
    const in_use lock(state.busy, "the projector");
    check_state(state);
    mtmd_input_part part = { nullptr, bitmap.get() };
    const mtmd_input_part * parts[] = { &part };
    std::unique_ptr<llama_spec_media> media(new llama_spec_media{ projector->state, mtmd::input_chunks_ptr(mtmd_input_chunks_init()) });
    check_done(state, mtmd_tokenize_from_parts(state.ctx, media->chunks.get(), parts, 1, /* add_special */ false),
            "the engine cannot prepare it");
    *out = media.release();
}

} // namespace

int llama_spec_projector_load(llama_spec_model * model, const char * path, const llama_spec_projector_params * params,
                              llama_spec_projector ** out) {
    return guarded([&] {
        model->state->home.check("this model was loaded");
        if (model->state->vocab_only) {
            fail(LLAMA_SPEC_UNSUPPORTED, "the model was loaded with vocab_only; load it without");
        }
        check_tensors_end(path);
        log_as_the_engine();
        auto state = std::make_shared<projector_state>();
        state->model = model->state;
        const cancelled_by asked(is_to_stop, state.get());
        state->ctx = mtmd_init_from_file(path, model->state->model, engine_params(*params));
        if (state->ctx == nullptr) {
            fail(LLAMA_SPEC_LOAD, "the engine could not load the projector");
        }
        if (!mtmd_support_vision(state->ctx) && !mtmd_support_audio(state->ctx)) {
            fail(LLAMA_SPEC_UNSUPPORTED, "it makes no rows of images or sounds");
        }
        *out = new llama_spec_projector{ std::move(state) };
    });
}

void llama_spec_projector_free(llama_spec_projector * projector) {
    guarded([&] {
        if (projector != nullptr && projector->state->home.is_here()) {
            delete projector;
        }
    });
}

void llama_spec_projector_cancel(llama_spec_projector * projector, bool value) {
    projector->state->cancelled.store(value, std::memory_order_relaxed);
}

int llama_spec_media_image(llama_spec_projector * projector, const uint8_t * rgb, int32_t width, int32_t height,
                           llama_spec_media ** out) {
    return guarded([&] {
        require(width > 0 && height > 0, "an image has at least one pixel");
        prepare(projector, mtmd::bitmap_ptr(mtmd_bitmap_init((uint32_t) width, (uint32_t) height, rgb)), out);
    });
}

int32_t llama_spec_projector_rate(llama_spec_projector * projector, bool * sees) {
    *sees = mtmd_support_vision(projector->state->ctx);
    return std::max(mtmd_get_audio_sample_rate(projector->state->ctx), 0);
}

int llama_spec_media_sound(llama_spec_projector * projector, const float * samples, int32_t n, llama_spec_media ** out) {
    return guarded([&] {
        require(n > 1, "a sound has at least two samples");
        prepare(projector, mtmd::bitmap_ptr(mtmd_bitmap_init_from_audio((size_t) n, samples)), out);
    });
}

void llama_spec_media_free(llama_spec_media * media) {
    guarded([&] {
        if (media != nullptr && media->projector->home.is_here()) {
            delete media;
        }
    });
}

int32_t llama_spec_media_n_parts(llama_spec_media * media) {
    return (int32_t) mtmd_input_chunks_size(media->chunks.get());
}

int llama_spec_media_get_part(llama_spec_media * media, int32_t i, llama_spec_media_part * out) {
    return guarded([&] {
        const mtmd_input_chunk * part = part_of(media, i);
        size_t n_ids = 0;
        out->ids         = mtmd_input_chunk_get_tokens_text(part, &n_ids);
        out->n_rows      = (int32_t) mtmd_input_chunk_get_n_tokens(part);
        if (std::any_of(out->ids, out->ids + n_ids, [](int32_t id) { return id < 0; })) {
            fail(LLAMA_SPEC_LOAD, "the model's vocabulary lacks a token that goes around images or sounds");
        }
        out->n_positions = (int32_t) mtmd_input_chunk_get_n_pos(part);
        out->is_whole    = out->ids == nullptr && mtmd_decode_use_non_causal(media->projector->ctx, part);
    });
}

int llama_spec_media_positions(llama_spec_media * media, int32_t i, int32_t * out) {
    return guarded([&] {
        const mtmd_input_chunk * part = part_of(media, i);
        const mtmd_image_tokens * image = mtmd_input_chunk_get_tokens_image(part);
        const size_t n = mtmd_input_chunk_get_n_tokens(part);
        for (size_t k = 0; k < n; ++k) {
            const auto same = (uint32_t) k;
            const auto pos = image != nullptr ? mtmd_image_tokens_get_decoder_pos(image, 0, k) : mtmd_decoder_pos{ same, same, same, 0 };
            out[k]         = (int32_t) pos.t;
            out[n + k]     = (int32_t) pos.y;
            out[2 * n + k] = (int32_t) pos.x;
        }
    });
}

int llama_spec_media_encode(llama_spec_media * media, int32_t i, float * out) {
    return guarded([&] {
        projector_state & state = *media->projector;
        const in_use lock(state.busy, "the projector");
        check_state(state);
        const mtmd_input_chunk * part = part_of(media, i);
        require(mtmd_input_chunk_get_type(part) != MTMD_INPUT_CHUNK_TYPE_TEXT, "this part has tokens");
        check_done(state, mtmd_encode_chunk(state.ctx, part), "the engine failed to compute the rows");
        const float * rows = mtmd_get_output_embd(state.ctx);
        std::copy(rows, rows + (size_t) state.n_row() * mtmd_input_chunk_get_n_tokens(part), out);
    });
}

#else

using namespace llama_spec;

namespace {

int without_media() {
    return guarded([] { fail(LLAMA_SPEC_UNSUPPORTED, "this build reads no images or sounds: build it with PYLLAMA_SPEC_MEDIA=ON"); });
}

} // namespace

int llama_spec_projector_load(llama_spec_model *, const char *, const llama_spec_projector_params *, llama_spec_projector **) {
    return without_media();
}

void llama_spec_projector_free(llama_spec_projector *) {}

void llama_spec_projector_cancel(llama_spec_projector *, bool) {}

int llama_spec_media_image(llama_spec_projector *, const uint8_t *, int32_t, int32_t, llama_spec_media **) {
    return without_media();
}

int32_t llama_spec_projector_rate(llama_spec_projector *, bool *) {
    return 0;
}

int llama_spec_media_sound(llama_spec_projector *, const float *, int32_t, llama_spec_media **) {
    return without_media();
}

void llama_spec_media_free(llama_spec_media *) {}

int32_t llama_spec_media_n_parts(llama_spec_media *) {
    return 0;
}

int llama_spec_media_get_part(llama_spec_media *, int32_t, llama_spec_media_part *) {
    return without_media();
}

int llama_spec_media_positions(llama_spec_media *, int32_t, int32_t *) {
    return without_media();
}

int llama_spec_media_encode(llama_spec_media *, int32_t, float *) {
    return without_media();
}

#endif
