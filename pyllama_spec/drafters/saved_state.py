"""What a drafter knows of a sequence, as bytes: a header, then arrays and the engine's part."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from pyllama_spec.engine.errors import ArgumentError

# Magic, version, CRC-32 of the rest, length of the JSON text.
_HEADER = struct.Struct("<4sIII")
_MAGIC, _VERSION = b"PLSD", 1


def pack(facts: Mapping[str, object], parts: Sequence[bytes]) -> bytes:
    """One block of bytes with facts and parts.

    Args:
        facts: what JSON can hold.
        parts: any bytes; unpack() gives them back in the same order.

    """
    text = json.dumps({**facts, "parts": [len(part) for part in parts]}).encode()
    body = b"".join((text, *parts))
    return _HEADER.pack(_MAGIC, _VERSION, zlib.crc32(body), len(text)) + body


def unpack(data: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """The facts and parts that pack() was given.

    Raises:
        ArgumentError: the bytes are damaged or were not written by pack().

    """
    if len(data) < _HEADER.size:
        raise ArgumentError(f"a drafter's state has at least {_HEADER.size} bytes, not {len(data)}")
    magic, version, crc, n_text = _HEADER.unpack_from(data)
    body = data[_HEADER.size :]
    if magic != _MAGIC or version != _VERSION:
        raise ArgumentError("these bytes are not a drafter's state")
    if zlib.crc32(body) != crc:
        raise ArgumentError("the drafter's state is damaged: its checksum differs")
    facts = json.loads(body[:n_text])
    parts, at = [], n_text
    for size in facts.pop("parts"):
        parts.append(body[at : at + size])
        at += size
    return facts, parts
