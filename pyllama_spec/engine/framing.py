"""Framed bytes: magic, version, CRC-32 of the rest, then the rest.

Readers of a saved state trust it, the engine most of all. So damaged or foreign bytes are refused
here.
"""

from __future__ import annotations

import struct
import zlib

from pyllama_spec.errors import ArgumentError

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
        raise ArgumentError(f"{what} has at least {HEADER_BYTES} bytes, not {len(data)}")
    found_magic, found_version, crc = _HEADER.unpack_from(data)
    if found_magic != magic:
        raise ArgumentError(f"these bytes are not {what}; decode the text again")
    if found_version != version:
        raise ArgumentError(
            f"these bytes are {what} in form {found_version}; this version reads form {version}: "
            "decode the text again instead"
        )
    body = memoryview(data)[HEADER_BYTES:]
    if zlib.crc32(body) != crc:
        raise ArgumentError(f"{what} is damaged (its checksum differs): decode the text again")
    return body
