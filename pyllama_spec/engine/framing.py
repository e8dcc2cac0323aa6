"""Framed bytes: magic, version, CRC-32 of the rest, then the rest.

Readers of a saved state trust it, the engine most of all. So damaged or foreign bytes are refused
here.
"""

from __future__ import annotations

import struct
import zlib

from pyllama_spec.errors import ArgumentError

_AGAIN = "decode the text again"
_HEADER = struct.Struct("<4sII")
HEADER_BYTES = _HEADER.size


def seal(data: bytearray | memoryview, magic: bytes, version: int) -> bytes:
    """Adds the header to the bytes."""
    with memoryview(data) as view:
        _HEADER.pack_into(view, 0, magic, version, zlib.crc32(view[HEADER_BYTES:]))
        return bytes(view)


def unseal(data: bytes, magic: bytes, version: int, what: str) -> memoryview:
    """Checks and removes the header of seal()."""
    if len(data) < HEADER_BYTES:
        raise ArgumentError(
            problem=f"{what} has {len(data)} bytes", expected=f"at least {HEADER_BYTES}"
        )
    found_magic, found_version, crc = _HEADER.unpack_from(data)
    if found_magic != magic:
        raise ArgumentError(problem=f"these bytes are not {what}", remedy=_AGAIN)
    if found_version != version:
        raise ArgumentError(
            problem=f"{what} has form {found_version}", expected=f"form {version}", remedy=_AGAIN
        )
    body = memoryview(data)[HEADER_BYTES:]
    if zlib.crc32(body) != crc:
        raise ArgumentError(problem=f"{what} is damaged (its checksum differs)", remedy=_AGAIN)
    return body
