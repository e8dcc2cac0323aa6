"""Serialises a drafter's state of a sequence: a header, arrays and the engine's part."""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from pyllama_spec.engine.framing import HEADER_BYTES, seal, unseal
from pyllama_spec.engine.model import Model
from pyllama_spec.errors import ArgumentError

_MAGIC, _VERSION = b"PLSD", 4
_LENGTH = struct.Struct("<I")  # of the JSON text
# Places of a draft's file that tell it from another one of the same sizes.
_N_SAMPLES, _SAMPLE_BYTES = 16, 4096


def pack(facts: Mapping[str, object], parts: Sequence[bytes], draft: str = "") -> bytes:
    """Packs facts and parts into one block of bytes; `draft` is the fingerprint of the draft."""
    header = {**facts, "draft": draft, "parts": [len(part) for part in parts]}
    text = json.dumps(header).encode()
    whole = bytearray(HEADER_BYTES)
    for part in (_LENGTH.pack(len(text)), text, *parts):
        whole += part
    return seal(whole, _MAGIC, _VERSION)


def unpack(data: bytes, draft: str = "") -> tuple[dict[str, Any], list[bytes]]:
    """Unpacks the facts and parts of pack() with the same draft."""
    body = bytes(unseal(data, _MAGIC, _VERSION, "a drafter's state"))
    at = _LENGTH.size + _LENGTH.unpack_from(body)[0]
    facts = json.loads(body[_LENGTH.size : at])
    if facts["draft"] != draft:
        raise ArgumentError(
            "state", problem="was saved with another draft", remedy="read the text again"
        )
    parts = []
    for size in facts.pop("parts"):
        parts.append(body[at : at + size])
        at += size
    return facts, parts


def fingerprint(model: Model, *settings: object) -> str:
    """A digest of a draft's sizes, samples of its file, and settings."""
    import hashlib  # loads a library of its own

    about = repr((sorted(model.metadata.items()), model.info, *settings))
    digest = hashlib.sha256(about.encode())
    with contextlib.suppress(OSError), model.path.open("rb") as file:
        size = model.path.stat().st_size
        for i in range(_N_SAMPLES):
            file.seek(size * i // _N_SAMPLES)
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()
