"""GGUF files as the builders write them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gguf import GGUFWriter


@contextmanager
def writing(path: Path, arch: str) -> Iterator[GGUFWriter]:
    """A writer for the keys and tensors of a file that readers never see half written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    writer = GGUFWriter(partial, arch)
    yield writer
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.replace(path)


def write_keys(path: Path, arch: str, values: dict[str, str | list[int]] | None = None) -> Path:
    """Writes a GGUF with these keys and no tensors, for checks that come before the weights."""
    with writing(path, arch) as writer:
        add_keys(writer, values or {})
    return path


def add_keys(writer: GGUFWriter, values: Mapping[str, Any]) -> None:
    """Adds keys, each of the type of its value."""
    adds: dict[type, Any] = {
        bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32,
        str: writer.add_string,
    }  # fmt: skip
    for key, value in values.items():
        adds.get(type(value), writer.add_array)(key, value)
