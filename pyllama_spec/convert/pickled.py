"""Reads files of torch.save() (.bin, .pt) without torch and without running their code.

Such a file is a zip with a pickle, `data.pkl`, and the bytes of each storage, `data/KEY`. A pickle
is a program; this reader knows the handful of names that a plain state dict needs, and refuses a
file that names anything else. The facts are those of torch/serialization.py and torch/_utils.py.
"""

from __future__ import annotations

import math
import pickle
import pickletools
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from pyllama_spec.errors import ConversionError
from pyllama_spec.files import open_plain
from pyllama_spec.gguf.tensors import STORED, Raw, SourceTensor

_STORAGES = {
    "DoubleStorage": "F64",
    "FloatStorage": "F32",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "LongStorage": "I64",
    "IntStorage": "I32",
    "ShortStorage": "I16",
    "CharStorage": "I8",
    "ByteStorage": "U8",
    "BoolStorage": "BOOL",
}
# Names and places of the tensors, no numbers: a real one has some kilobytes.
_MAX_PICKLE_BYTES = 4 << 20
# What a broken or hostile pickle, or zip, makes the standard library raise.
_FAULTS = (
    ArithmeticError, AttributeError, EOFError, ImportError, IndexError, KeyError, MemoryError,
    NotImplementedError, RecursionError, RuntimeError, TypeError, ValueError,
    pickle.UnpicklingError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Kind:
    """Replaces a storage's class by a value that the pickle cannot call."""

    dtype: str


class _Storage(NamedTuple):
    dtype: str
    key: str
    n_elements: int


class _View(NamedTuple):
    """A tensor as a view of a storage, in elements."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def read_torch(path: Path) -> dict[str, SourceTensor]:
    """The tensors of a state dict by name; their bytes are read on demand.

    Raises:
        ConversionError: the file is damaged, in the format before torch 1.6, or holds anything but
            tensors.

    """
    return {name: value for name, value in _read(path, _views) if isinstance(value, SourceTensor)}


def read_torch_values(path: Path) -> dict[str, SourceTensor | int]:
    """The tensors and integers of a dict by name; a lone tensor has the name "".

    Raises:
        ConversionError: see read_torch(); or the dict holds something else.

    """
    return dict(_read(path, _views_and_numbers))


def _read(
    path: Path, pick: Callable[[Any], dict[str, _View | int]]
) -> list[tuple[str, SourceTensor | int]]:
    try:
        with open_plain(path) as file:
            if not zipfile.is_zipfile(file):
                raise ConversionError(f"{path.name} {_why_no_zip(file)}")
            archive = zipfile.ZipFile(file)
            _check_stored(archive)
            root, content = _unpickle(archive)
            values = pick(content)
            for name, value in values.items():
                if isinstance(value, _View):
                    _check(archive, root, name, value)
    except OSError as error:
        raise ConversionError(f"{path} cannot be read: {error.strerror or error}") from None
    except _FAULTS as error:
        raise ConversionError(f"{path.name} cannot be read: {_text(error)}") from None
    return [(name, _source(path, root, name, value)) for name, value in values.items()]


def _source(path: Path, root: str, name: str, value: _View | int) -> SourceTensor | int:
    if isinstance(value, int):
        return value
    read = _reader(path, root, name, value)
    return SourceTensor(name, value.storage.dtype, value.shape, read)


def _text(error: BaseException) -> str:
    return f"{str(error) or type(error).__name__}; it is damaged, or no checkpoint of a draft"


def _why_no_zip(file: BinaryIO) -> str:
    file.seek(0)
    start = file.read(8)
    if start.startswith(b"version "):
        return "is a Git LFS pointer, not the file itself; fetch it with `git lfs pull`"
    if start.startswith(b"PK"):
        return "is cut off; download it again"
    if start[:1] == b"\x80":
        return (
            "was saved in the format before torch 1.6, which is not read; load it with torch and "
            "save it again, or give the checkpoint as .safetensors"
        )
    return "is not a file that torch.save() wrote"


class _Unpickler(pickle.Unpickler):
    """Builds dicts and _View tuples, and refuses every other name."""

    def find_class(self, module: str, name: str, /) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _RebuildTensor()
        if (module, name) == ("torch._utils", "_rebuild_parameter"):
            return _RebuildParameter()
        if module == "torch" and name in _STORAGES:
            return _Kind(_STORAGES[name])
        raise pickle.UnpicklingError(
            f"it names {module}.{name}, which a plain state dict does not need"
        )

    def persistent_load(self, pid: Any, /) -> _Storage:
        match pid:
            case ("storage", _Kind(dtype=dtype), str(key), _, int(n)) if n >= 0:
                return _Storage(dtype, key, n)
        raise pickle.UnpicklingError("it points to something that is not a storage")


class _RebuildTensor:
    """Replaces torch._utils._rebuild_tensor_v2; has no __dict__ that a pickle could change."""

    __slots__ = ()

    def __call__(self, storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> _View:
        numbers = [offset, *shape, *strides]
        if not isinstance(storage, _Storage) or len(shape) != len(strides):
            raise pickle.UnpicklingError("it describes a tensor wrongly")
        if any(type(n) is not int or n < 0 for n in numbers):
            raise pickle.UnpicklingError("it describes a tensor wrongly")
        return _View(storage, offset, tuple(shape), tuple(strides))


class _RebuildParameter:
    """Replaces torch._utils._rebuild_parameter: returns the parameter's tensor."""

    __slots__ = ()

    def __call__(self, data: Any, *_: Any) -> Any:
        return data


def _check_stored(archive: zipfile.ZipFile) -> None:
    """Refuses archives that unpack to more than the file's size: torch.save() does not compress."""
    for entry in archive.infolist():
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size > entry.compress_size:
            raise ValueError(f"{entry.filename} is compressed, which torch.save() never does")


def _unpickle(archive: zipfile.ZipFile) -> tuple[str, Any]:
    """The folder inside the zip, and the pickle's object."""
    pickles = [name for name in archive.namelist() if name.split("/")[1:] == ["data.pkl"]]
    if len(pickles) != 1:
        raise ValueError("it holds no data.pkl")
    root = pickles[0].rpartition("/")[0]
    if f"{root}/byteorder" in archive.namelist():
        order = archive.read(f"{root}/byteorder").strip()
        if order != b"little":
            raise ValueError("it was written on a big-endian machine")
    if archive.getinfo(pickles[0]).file_size > _MAX_PICKLE_BYTES:
        raise ValueError("its data.pkl is far too long")
    program = archive.read(pickles[0])
    _check_program(program)
    return root, _Unpickler(BytesIO(program), encoding="utf-8").load()


def _check_program(program: bytes) -> None:
    """Refuses a pickle that would take far more memory than its length.

    The unpickler allocates a table as large as the largest memo index.
    """
    for opcode, argument, _ in pickletools.genops(program):
        is_place = "PUT" in opcode.name or "GET" in opcode.name
        if is_place and isinstance(argument, int) and not 0 <= argument < len(program):
            raise pickle.UnpicklingError(f"it uses the memo index {argument}, beyond its length")


def _views(content: Any) -> dict[str, _View | int]:
    """The tensors of a state dict; refuses other values."""
    values = _values(content)
    for name, value in values.items():
        if not isinstance(value, _View):
            raise TypeError(f"{name!r} is a {type(value).__name__}, not a tensor")
    return values


def _views_and_numbers(content: Any) -> dict[str, _View | int]:
    values: dict[str, Any] = {"": content} if isinstance(content, _View) else _values(content)
    for name, value in values.items():
        if not isinstance(value, _View) and type(value) is not int:
            raise TypeError(f"{name!r} is a {type(value).__name__}, no tensor and no integer")
    return values


def _values(content: Any) -> dict[str, Any]:
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise ValueError(f"it holds a {type(content).__name__}, no tensors by their names")
    return content


def _place(root: str, view: _View) -> str:
    return f"{root}/data/{view.storage.key}"


def _check(archive: zipfile.ZipFile, root: str, name: str, view: _View) -> None:
    """Checks that the storage is complete and that the tensor lies within it."""
    storage = view.storage
    place = _place(root, view)
    if place not in archive.namelist():
        raise ValueError(f"the numbers of {name} are missing")
    n_bytes = storage.n_elements * STORED[storage.dtype].itemsize
    if archive.getinfo(place).file_size != n_bytes:
        raise ValueError(f"the numbers of {name} are not {n_bytes} bytes")
    if math.prod(view.shape):
        steps = zip(view.shape, view.strides, strict=True)
        last = view.offset + sum((n - 1) * stride for n, stride in steps)
        if last >= storage.n_elements:
            raise ValueError(f"{name} reaches beyond the end of its storage")


def _reader(path: Path, root: str, name: str, view: _View) -> Callable[[], Raw]:
    dtype = STORED[view.storage.dtype]

    def read() -> Raw:
        try:
            with zipfile.ZipFile(path) as archive:
                # read() compares the checksum.
                stored = np.frombuffer(archive.read(_place(root, view)), dtype)
        except OSError as error:
            raise ConversionError(f"{path} cannot be read: {error.strerror or error}") from None
        except _FAULTS as error:
            raise ConversionError(f"{path.name}: {name}: {_text(error)}") from None
        if math.prod(view.shape) == 0:
            return np.zeros(view.shape, dtype)
        strides = [stride * dtype.itemsize for stride in view.strides]
        return np.lib.stride_tricks.as_strided(
            stored[view.offset :], view.shape, strides, writeable=False
        )

    return read
