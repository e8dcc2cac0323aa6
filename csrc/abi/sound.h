// Sounds: files of them as samples.
#pragma once

#include <cstddef>
#include <cstdint>

namespace llama_spec {

// Decodes a WAV, FLAC or MP3 file to one channel at a rate. Returns the number of samples, at most n_max; -1 if the file
// cannot be read, -2 if it has more or is too costly to decode.
int64_t decode_sound(const uint8_t * data, size_t n_bytes, int32_t rate, float * out, int64_t n_max);

} // namespace llama_spec
