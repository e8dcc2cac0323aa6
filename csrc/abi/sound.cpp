// Sounds: decodes their files.
#include "abi/handles.h"

#ifdef PYLLAMA_SPEC_MEDIA

#include <algorithm>
#include <stdexcept>

namespace {

[[noreturn]] void broken() {
    throw std::runtime_error("a decoder of sounds has failed");
}

} // namespace

// An assertion that a file brings to fail must not end the process.
#define MA_ASSERT(condition) ((condition) ? (void) 0 : broken())
#define MA_DR_WAV_ASSERT(condition)  MA_ASSERT(condition)
#define MA_DR_FLAC_ASSERT(condition) MA_ASSERT(condition)
#define MA_DR_MP3_ASSERT(condition)  MA_ASSERT(condition)
#define MINIAUDIO_IMPLEMENTATION
#define MA_API static
#define MA_NO_DEVICE_IO
#define MA_NO_ENCODING
#define MA_NO_ENGINE
#define MA_NO_GENERATION
#define MA_NO_NODE_GRAPH
#define MA_NO_RESOURCE_MANAGER
#define MA_NO_THREADING
#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wunused-function"
#endif
#include "miniaudio/miniaudio.h"

namespace {

// The time of decoding grows with channels and samples: a sound with more than two channels of 48,000 has to be shorter.
constexpr int64_t MAX_PER_SECOND = 2 * 48000;
constexpr int64_t BLOCK = 1 << 14;

int64_t decoded(const ma_decoder_config & config, const uint8_t * data, size_t n_bytes, float * out, int64_t n_max) {
    ma_decoder decoder;
    if (ma_decoder_init_memory(data, n_bytes, &config, &decoder) != MA_SUCCESS) {
        return -1;
    }
    ma_format format = ma_format_unknown;
    ma_uint32 n_channels = 0, n_per_second = 0;
    ma_data_source_get_data_format(decoder.pBackend, &format, &n_channels, &n_per_second, nullptr, 0);
    const int64_t cost = (int64_t) n_channels * n_per_second;
    const int64_t n_most = cost > MAX_PER_SECOND ? n_max * MAX_PER_SECOND / cost : n_max;
    int64_t n = 0;
    float more = 0.0f;
    ma_uint64 n_read = 1;
    while (n_read > 0 && n < n_most) {
        n_read = 0;
        ma_decoder_read_pcm_frames(&decoder, out + n, (ma_uint64) std::min(n_most - n, BLOCK), &n_read);
        n += (int64_t) n_read;
    }
    if (n == n_most && ma_decoder_read_pcm_frames(&decoder, &more, 1, &n_read) == MA_SUCCESS && n_read > 0) {
        n = -2;
    }
    ma_decoder_uninit(&decoder);
    return n;
}

} // namespace

int64_t llama_spec_sound(const uint8_t * data, uint64_t n_bytes, int32_t rate, float * out, int64_t n_max) {
    return llama_spec::guarded_or<int64_t>(-1, [&] {
        return decoded(ma_decoder_config_init(ma_format_f32, 1, (ma_uint32) rate), data, (size_t) n_bytes, out, n_max);
    });
}

#else

int64_t llama_spec_sound(const uint8_t *, uint64_t, int32_t, float *, int64_t) {
    return -1;
}

#endif
