// Decodes UTF-8 byte by byte: bytes come from tokens that may end within a character.
#pragma once

#include <cstdint>

namespace llama_spec {

// Reads one more byte. value, n_remain: the value of an unfinished character so far, and its number of missing bytes;
// n_remain is 0 between characters. Returns false if no Unicode character continues this way: an unexpected byte, an
// overlong form, half of a surrogate pair, a number above U+10FFFF. If n_remain is 0 afterwards, value is a character.
inline bool utf8_step(uint32_t & value, int & n_remain, uint8_t byte) {
    if (n_remain == 0) {
        if (byte < 0x80) {
            value = byte;
            return true;
        }
        if (byte < 0xC2 || byte > 0xF4) {
            return false;
        }
        n_remain = byte < 0xE0 ? 1 : byte < 0xF0 ? 2 : 3;
        value    = byte & (0x3F >> n_remain);
        return true;
    }
    if ((byte & 0xC0) != 0x80) {
        return false;
    }
    const uint32_t lead = value;
    const int      left = n_remain;
    value    = (value << 6) | (byte & 0x3F);
    n_remain = left - 1;
    // After E0, ED, F0 and F4 some bytes are invalid. A valid four-byte character has 0x10 .. 0x10F here, after its
    // second byte.
    if (left == 2 && lead < 0x10) {
        return value >= 0x20 && (value < 0x360 || value > 0x37F);
    }
    return left != 3 || (value >= 0x10 && value <= 0x10F);
}

} // namespace llama_spec
