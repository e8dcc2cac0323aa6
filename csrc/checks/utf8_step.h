// UTF-8 byte by byte, where bytes come from tokens that may end within a character.
#pragma once

#include <cstdint>

namespace llama_spec {

// Takes one byte more. value, n_remain: what the bytes of an unfinished character say until now, and how many more it
// has; 0 between characters. False if no character of Unicode goes on like that: a byte out of place, more bytes than
// needed, half of a UTF-16 pair, a number above U+10FFFF. With n_remain 0 behind a byte, value is a character.
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
    // Behind E0, ED, F0 and F4 some bytes are excluded. A character of four bytes has 0x10 or more behind its second.
    if (left == 2 && lead < 0x10) {
        return value >= 0x20 && (value < 0x360 || value > 0x37F);
    }
    return left != 3 || (value >= 0x10 && value <= 0x10F);
}

} // namespace llama_spec
