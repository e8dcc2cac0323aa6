"""What a drafter knows of a sequence, as bytes: a header, then arrays and the engine's part."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from pyllama_spec.engine.framing import HEADER_BYTES, seal, unseal

_MAGIC, _VERSION = b"PLSD", 2
_LENGTH = struct.Struct("<I")  # of the JSON text


def pack(facts: Mapping[str, object], parts: Sequence[bytes]) -> bytes:
    """One block of bytes with facts and parts.

    Args:
        facts: what JSON can hold.
        parts: any bytes; unpack() gives them back in the same order.

    """
    text = json.dumps({**facts, "parts": [len(part) for part in parts]}).encode()
    body = (_LENGTH.pack(len(text)), text, *parts)
    return seal(bytearray(b"".join((bytes(HEADER_BYTES), *body))), _MAGIC, _VERSION)


def unpack(data: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """The facts and parts that pack() was given.

    Raises:
        ArgumentError: the bytes are damaged or were not written by pack().

    """
    body = bytes(unseal(data, _MAGIC, _VERSION, "a drafter's state"))
    at = _LENGTH.size + _LENGTH.unpack_from(body)[0]
    facts = json.loads(body[_LENGTH.size : at])
    parts = []
    for size in facts.pop("parts"):
        parts.append(body[at : at + size])
        at += size
    return facts, parts
