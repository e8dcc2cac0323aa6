"""How many bytes of weights plain decoding reads per token, by the GGUF's table of tensors."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from pyllama_spec.engine import Model
from pyllama_spec.engine.errors import ModelLoadError

# Sizes of GGUF's value types by number; 8 is a string, 9 an array.
_VALUE_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY = 8, 9
_ALIGNMENT_KEY, _DEFAULT_ALIGNMENT = b"general.alignment", 32


def tensor_bytes(path: Path) -> dict[str, int]:
    """Bytes of each tensor of a GGUF file, padding included.

    Raises:
        ModelLoadError: the file's table cannot be read.

    """
    try:
        with path.open("rb") as file:
            offsets, start = _table(file)
        size = path.stat().st_size
    except (OSError, struct.error, KeyError, UnicodeDecodeError) as error:
        raise ModelLoadError(f"cannot read the tensors of {path}: {error!r}") from None
    ordered = sorted(offsets.items(), key=lambda item: item[1])
    ends = [offset for _, offset in ordered[1:]] + [size - start]
    return {name: end - offset for (name, offset), end in zip(ordered, ends, strict=True)}


def bytes_per_token(sizes: Mapping[str, int], metadata: Mapping[str, str]) -> int:
    """Bytes of weights that one decode of one token reads.

    Embeddings are looked up, a row each, unless the output uses the same tensor; of experts only
    those that are used are read.

    Args:
        sizes: of tensor_bytes().
        metadata: the model's, as text.

    """
    arch = metadata.get("general.architecture", "")
    n_experts = int(metadata.get(f"{arch}.expert_count", "0"))
    n_used = int(metadata.get(f"{arch}.expert_used_count", "0"))
    share = n_used / n_experts if n_experts and n_used else 1.0
    looked_up = {"per_layer_token_embd.weight"}
    if "output.weight" in sizes:
        looked_up.add("token_embd.weight")
    return round(
        sum(
            size * (share if "_exps." in name else 1.0)
            for name, size in sizes.items()
            if name not in looked_up
        )
    )


def weight_bytes(model: Model) -> tuple[int, str]:
    """Bytes of weights per plain token, and where the number comes from, in words."""
    metadata = model.metadata
    if int(metadata.get("split.count", "0")) > 1:
        return model.info.size_bytes, "the size of all weights: the file is split"
    try:
        n = bytes_per_token(tensor_bytes(model.path), metadata)
    except ModelLoadError:
        return model.info.size_bytes, "the size of all weights: the file's table is unreadable"
    return n, "tensors that a decode of one token reads: no looked-up embeddings, no idle experts"


def _table(file: BinaryIO) -> tuple[dict[str, int], int]:
    """Offsets of the tensors in the data, and where in the file the data begins."""
    _, _, n_tensors, n_keys = _read(file, "<4sIQQ")
    alignment = _DEFAULT_ALIGNMENT
    for _ in range(n_keys):
        key = _string(file)
        (kind,) = _read(file, "<I")
        if key == _ALIGNMENT_KEY:
            (alignment,) = _read(file, "<I")
        else:
            _skip(file, kind)
    offsets: dict[str, int] = {}
    for _ in range(n_tensors):
        name = _string(file).decode()
        (n_dims,) = _read(file, "<I")
        *_, offset = _read(file, f"<{n_dims}QIQ")
        offsets[name] = offset
    return offsets, -(-file.tell() // alignment) * alignment


def _read(file: BinaryIO, form: str) -> tuple[int, ...]:
    return struct.unpack(form, file.read(struct.calcsize(form)))


def _string(file: BinaryIO) -> bytes:
    (n,) = _read(file, "<Q")
    return file.read(n)


def _skip(file: BinaryIO, kind: int) -> None:
    if kind == _STRING:
        (n,) = _read(file, "<Q")
        file.seek(n, 1)
    elif kind == _ARRAY:
        (item,) = _read(file, "<I")
        (n,) = _read(file, "<Q")
        if item in _VALUE_BYTES:
            file.seek(n * _VALUE_BYTES[item], 1)
        else:
            for _ in range(n):
                _skip(file, item)
    else:
        file.seek(_VALUE_BYTES[kind], 1)
