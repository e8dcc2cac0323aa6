"""Stores states of past requests in a folder, for later processes.

A state is a file readable only by its owner, which names its model and settings. It is not a
pickle, and a damaged one is deleted.
"""

from __future__ import annotations

import json
import os
import struct
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pyllama_spec.drafters.base import n_common_ids
from pyllama_spec.engine.framing import HEADER_BYTES, seal, unseal
from pyllama_spec.errors import ArgumentError, warn
from pyllama_spec.llama.caches import BaseLlamaCache, StateKey
from pyllama_spec.llama.open_model import LlamaState

_MAGIC, _VERSION, _SUFFIX = b"pspx", 1, ".prefix"
_LENGTH = struct.Struct("<I")
_WHAT = "a file of what was read"
_MAX_HEADER = 256 << 20  # bytes; that of a million tokens has 10 MB


class _Header(NamedTuple):
    """The header of a state's file."""

    owner: str
    model: str
    settings: Sequence[tuple[str, str]]
    n_decoded: int
    n_given: int | None
    tokens: Sequence[int]
    n_memory: int
    n_drafter: int | None


@dataclass(frozen=True, slots=True)
class _Known:
    """A known file: its owner, tokens and size."""

    owner: str
    tokens: npt.NDArray[np.int32]
    n_bytes: int


class LlamaDiskCache(BaseLlamaCache):
    """A cache in a folder, which is created with access for its owner alone.

    The files take capacity_bytes at most; the least recently used are removed first.

    Raises:
        ArgumentError: the folder cannot be created or read.
    """

    # The shortest text that is worth a file, and by how much one has to grow for another one.
    min_tokens = min_new = 1

    def __init__(
        self,
        cache_dir: str | os.PathLike[str] = ".cache/llama_cache",
        capacity_bytes: int = 2 << 30,
    ) -> None:
        super().__init__(capacity_bytes)
        self._folder = Path(cache_dir)
        self._known: dict[str, _Known] = {}
        self._lock = threading.Lock()
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            files = [one for one in self._folder.iterdir() if one.suffix == _SUFFIX]
        except OSError as error:
            raise ArgumentError(
                problem=f"prompts cannot be kept in {self._folder}: {error.strerror}"
            ) from None
        for path in sorted(files, key=_used_ns):
            with suppress(OSError):  # another process has just deleted it, or only it may read it
                if path.is_file():
                    self._learn(path)

    def _learn(self, path: Path) -> None:
        """Registers an existing file; its content is checked when used. Others' files stay."""
        n_bytes = path.stat().st_size
        with path.open("rb") as file:
            data = file.read(HEADER_BYTES + _LENGTH.size)
            if not data.startswith(_MAGIC):
                return
            if len(data) == HEADER_BYTES + _LENGTH.size:
                (n,) = _LENGTH.unpack_from(data, HEADER_BYTES)
                data += file.read(min(n, n_bytes, _MAX_HEADER))  # a damaged one may say any
        header = _header_of(data)
        if header is None:
            path.unlink(missing_ok=True)
            return
        tokens = np.asarray(header.tokens, np.int32)
        self._known[path.stem] = _Known(header.owner, tokens, n_bytes)

    @property
    def cache_size(self) -> int:
        """The size of all files in bytes."""
        with self._lock:
            return sum(one.n_bytes for one in self._known.values())

    def _closest(self, key: Sequence[int]) -> tuple[str, int] | None:
        """The file with the longest prefix of a text, and the prefix's length."""
        owner = getattr(key, "owner", None)
        asked = np.asarray(key, np.int32)
        best: tuple[str, int] | None = None
        with self._lock:
            for name, one in self._known.items():
                if owner is not None and one.owner != owner:
                    continue
                n = n_common_ids(asked, one.tokens)
                if n > (best[1] if best else 0):
                    best = name, n
        return best

    def __getitem__(self, key: Sequence[int]) -> LlamaState:
        """The state with the longest prefix of a text; KeyError if none is worth its file."""
        closest = self._closest(key)
        if closest is None or closest[1] < self.min_tokens:
            raise KeyError("no file begins with enough of these tokens")
        path = self._path(closest[0])
        try:
            state = _state_of(path.read_bytes())
            os.utime(path)
        except (OSError, ArgumentError):
            self._drop(closest[0])
            raise KeyError("the file is gone, or damaged") from None
        with self._lock:  # the last used one is the last to be deleted
            if closest[0] in self._known:
                self._known[closest[0]] = self._known.pop(closest[0])
        return state

    def __contains__(self, key: Sequence[int]) -> bool:
        closest = self._closest(key)
        return closest is not None and closest[1] >= self.min_tokens

    def __setitem__(self, key: Sequence[int], value: LlamaState) -> None:
        """Writes a state, unless it is short or adds little to a stored one."""
        tokens, owner = value.tokens[: value.n_tokens], value.owner
        if len(tokens) < self.min_tokens:
            return
        closest = self._closest(StateKey(tokens, owner))
        if closest is None or closest[1] <= len(tokens) - self.min_new:
            self._put(owner, value)

    def _put(self, owner: str, state: LlamaState) -> None:
        try:
            self._write(owner, state)
        except OSError as error:  # the text that it is the state of is there, and has to be given
            warn(f"a state is not kept in {self._folder}: {error.strerror}")

    def _write(self, owner: str, state: LlamaState) -> None:
        data = _bytes_of(owner, state)
        if len(data) > self.capacity_bytes:
            return
        tokens = np.asarray(state.tokens[: state.n_tokens], np.int32)
        import hashlib  # loads a library of its own

        name = hashlib.sha256(owner.encode() + tokens.tobytes()).hexdigest()[:32]
        self._make_room(len(data))
        # mkstemp() makes it 0600, and it is renamed when it is whole.
        number, made = tempfile.mkstemp(dir=self._folder, suffix=".part")
        try:
            with os.fdopen(number, "wb") as file:
                file.write(data)
            Path(made).replace(self._path(name))
        except BaseException:
            Path(made).unlink(missing_ok=True)
            raise
        with self._lock:
            self._known[name] = _Known(owner, tokens, len(data))

    def _make_room(self, n_bytes: int) -> None:
        for name in list(self._known):  # the oldest first
            if self.cache_size + n_bytes <= self.capacity_bytes:
                return
            self._drop(name)

    def _drop(self, name: str) -> None:
        with self._lock:
            self._known.pop(name, None)
        with suppress(OSError):  # what cannot be deleted is not used again either
            self._path(name).unlink()

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}{_SUFFIX}"


def _bytes_of(owner: str, state: LlamaState) -> bytes:
    n_drafter = None if state.drafter is None else len(state.drafter)
    header = _Header(
        owner, state.model, state.settings, state.n_decoded, state.n_given, state.tokens,
        len(state.memory), n_drafter,
    )  # fmt: skip
    raw = json.dumps(header).encode()
    parts = (_LENGTH.pack(len(raw)), raw, state.memory, state.drafter or b"")
    return seal(bytearray(bytes(HEADER_BYTES) + b"".join(parts)), _MAGIC, _VERSION)


def _header_of(data: bytes) -> _Header | None:
    """The header of a file's first bytes; None if invalid."""
    body = memoryview(data)[HEADER_BYTES:]
    if data[: len(_MAGIC)] != _MAGIC or len(body) < _LENGTH.size:
        return None
    (n,) = _LENGTH.unpack_from(body)
    try:
        header = _Header(*json.loads(bytes(body[_LENGTH.size : _LENGTH.size + n])))
        is_right = _is_right(header)
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None
    return header if is_right else None


def _is_right(header: _Header) -> bool:
    """Whether the fields are of their types: a file may be damaged, or of anyone's making."""
    maybe = [n for n in (header.n_given, header.n_drafter) if n is not None]
    np.asarray(header.tokens, np.int32)  # raises for what does not fit
    return (
        type(header.owner) is type(header.model) is str
        and type(header.tokens) is list
        and set(map(type, header.tokens)) <= {int}
        and all(type(n) is int and n >= 0 for n in (header.n_decoded, header.n_memory, *maybe))
        and header.n_decoded <= len(header.tokens)
        and all(type(name) is type(value) is str for name, value in header.settings)
    )


def _used_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _state_of(data: bytes) -> LlamaState:
    """Reads the state of a file."""
    body, header = unseal(data, _MAGIC, _VERSION, _WHAT), _header_of(data)
    if header is None:
        raise ArgumentError(problem=f"{_WHAT} has no header")
    begin = _LENGTH.size + _LENGTH.unpack_from(body)[0]
    end = begin + header.n_memory
    settings = tuple((name, value) for name, value in header.settings)
    return LlamaState(
        tuple(header.tokens), header.n_decoded, bytes(body[begin:end]),
        None if header.n_drafter is None else bytes(body[end : end + header.n_drafter]),
        None, header.model, header.n_given, settings,
    )  # fmt: skip
