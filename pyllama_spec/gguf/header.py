"""Reads a file's header before the engine loads the file."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

from pyllama_spec.errors import ModelLoadError

_HEADER = struct.Struct("<4sIQQ")  # magic, version, number of tensors, number of metadata keys
HEADER_BYTES = _HEADER.size
_VERSIONS = (2, 3)
# Every key takes at least a length, a character, a type and a value; every tensor more.
_MIN_ENTRY_BYTES = 14
# Real files have less than a hundred. The engine counts to find its n-th key: 20,000 took seconds.
_MAX_KEYS = 4096


class Header(NamedTuple):
    """The counts in a file's header, and its size.

    Attributes:
        n_tensors, n_keys: the number of entries of its tables.
        n_bytes: the size of the file.
    """

    n_tensors: int
    n_keys: int
    n_bytes: int


def check_header(path: Path) -> Header:
    """Refuses a file that is not GGUF, with a remedy."""
    try:
        if path.is_dir():
            raise ModelLoadError(f"{path} is a folder; give the path of a .gguf file in it")
        if path.exists() and not path.is_file():
            raise ModelLoadError(f"{path} is not a file but a device, a pipe or a socket")
        size = path.stat().st_size
        with path.open("rb") as file:
            data = file.read(_HEADER.size)
    except FileNotFoundError:
        home = "; ~ is no folder here: write it out, or call Path(...).expanduser()"
        more = home if path.parts[:1] == ("~",) else "; check the path"
        raise ModelLoadError(f"{path} does not exist{more}") from None
    except PermissionError:
        raise ModelLoadError(
            f"{path} may not be read by this user; check its permissions"
        ) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ModelLoadError(f"{path} cannot be read: {reason}; check the path") from None
    if size == 0:
        raise ModelLoadError(f"{path} is empty; download it again")
    if data[:4] != b"GGUF":
        raise ModelLoadError(
            f"{path} is not a GGUF file: it starts with {data[:4]!r}, not b'GGUF'; give the path "
            "of a .gguf file, or download it again"
        )
    if len(data) < _HEADER.size:
        raise ModelLoadError(f"{path} is cut off after {size} bytes; download it again")
    _, version, n_tensors, n_keys = _HEADER.unpack(data)
    if version not in _VERSIONS:
        raise ModelLoadError(
            f"{path} has GGUF version {version}; convert it again: 2 and 3 are read"
        )
    if (n_tensors + n_keys) * _MIN_ENTRY_BYTES > size:
        raise ModelLoadError(
            f"{path} promises {n_tensors} tensors and {n_keys} metadata keys, more than its "
            f"{size} bytes can hold: it is cut off or damaged; download it again"
        )
    if n_keys > _MAX_KEYS:
        raise ModelLoadError(f"{path} has {n_keys} metadata keys; {_MAX_KEYS} are the most")
    return Header(n_tensors, n_keys, size)
