"""Reads a Hugging Face checkpoint folder: config.json and tensors in one file or many."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyllama_spec.convert.tensor_files import read_safetensors, read_torch
from pyllama_spec.errors import ConversionError
from pyllama_spec.files import read_plain
from pyllama_spec.gguf.tensors import SourceTensor

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The content of a checkpoint folder."""

    folder: Path  # its path
    name: str  # the model's name, from the folder's
    config: Json  # config.json
    tensors: Mapping[str, SourceTensor]  # the tensors by their names in the files


def open_checkpoint(folder: Path) -> Checkpoint:
    """Reads config.json and the headers of the tensor files.

    Safetensors are preferred to .bin files, and an index of several files to a single one.
    """
    if not folder.is_dir():
        kind = "is a file; give the folder that holds it" if folder.exists() else "does not exist"
        raise ConversionError(f"{folder} {kind}: a checkpoint is a folder with config.json")
    config = read_json(folder / "config.json")
    tensors = _read_tensors(folder)
    if not tensors:
        raise ConversionError(f"the tensor file of {folder} holds no tensors")
    return Checkpoint(folder, model_name(folder), config, tensors)


def model_name(folder: Path) -> str:
    """A name for the model: its folder's name, or the repository's in a download cache."""
    folder = folder.resolve()
    if folder.parent.name == "snapshots" and folder.parent.parent.name.startswith("models--"):
        return folder.parent.parent.name.rpartition("--")[2]
    return folder.name


def read_json(path: Path) -> Json:
    """Reads a JSON file that holds an object."""
    try:
        values = json.loads(read_plain(path))
    except FileNotFoundError:
        raise ConversionError(f"{path} does not exist; a checkpoint needs it") from None
    except OSError as error:
        raise ConversionError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise ConversionError(f"{path} is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise ConversionError(f"{path} holds a {type(values).__name__}, not an object")
    return values


_Reader = Callable[[Path], dict[str, SourceTensor]]
_KINDS: tuple[tuple[str, str, _Reader], ...] = (
    ("model.safetensors", "*.safetensors", read_safetensors),
    ("pytorch_model.bin", "*.bin", read_torch),
)


def _read_tensors(folder: Path) -> dict[str, SourceTensor]:
    for name, pattern, read in _KINDS:
        index = folder / f"{name}.index.json"
        if index.exists():
            return _read_shards(index, read)
        if (folder / name).exists():
            return read(folder / name)
        if len(others := sorted(folder.glob(pattern))) == 1:
            return read(others[0])
        if others:
            names = ", ".join(path.name for path in others)
            raise ConversionError(
                f"{folder} holds {names} without an index of their tensors; download the index too"
            )
    wanted = " or ".join(name for name, _, _ in _KINDS)
    raise ConversionError(f"{folder} holds no tensors: neither {wanted}")


def _read_shards(index: Path, read: _Reader) -> dict[str, SourceTensor]:
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(v, str) for v in places.values()):
        raise ConversionError(f"{index} has no weight_map from tensors to files")
    files = sorted(set(places.values()))
    for file in files:
        if file != Path(file).name or "\\" in file:
            raise ConversionError(
                f"{index} names {file!r}, which is not the plain name of a file beside it"
            )
        if not (index.parent / file).exists():
            raise ConversionError(f"{index.name} names {file}, which is not beside it")
    tensors: dict[str, SourceTensor] = {}
    for file in files:
        shard = read(index.parent / file)
        listed = {name for name, place in places.items() if place == file}
        if odd := sorted(listed ^ shard.keys()):
            where = f"{file} lacks it" if odd[0] in listed else f"{file} holds it as well"
            raise ConversionError(f"{index.name} does not fit its files: {odd[0]}: {where}")
        tensors |= shard
    return tensors
