"""GGUF files with keys and no tensors, for checks that come before the weights."""

from __future__ import annotations

from pathlib import Path

from gguf import GGUFWriter


def write_keys(path: Path, arch: str, values: dict[str, str | list[int]] | None = None) -> Path:
    """Writes a GGUF of an architecture with these keys; returns the path."""
    writer = GGUFWriter(path, arch)
    for key, value in (values or {}).items():
        if isinstance(value, list):
            writer.add_array(key, value)
        else:
            writer.add_string(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
