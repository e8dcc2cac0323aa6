"""Files of GGUF with keys and no tensor: what is read before any weight is."""

from __future__ import annotations

from pathlib import Path

from gguf import GGUFWriter


def write_keys(path: Path, arch: str, values: dict[str, str | list[int]] | None = None) -> Path:
    """A GGUF of an architecture with these keys."""
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
