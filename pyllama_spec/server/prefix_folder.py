"""Stores states of past requests in a folder, so that a restarted server can reuse them.

A state is a file readable only by its owner, which names its model and settings. It is not a
pickle, and a damaged one is deleted. A thread writes the files, so that no request waits for a
disk; under load some are dropped.
"""

from __future__ import annotations

import hashlib
import os
import queue
import struct
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from pyllama_spec.engine.checks import count
from pyllama_spec.engine.framing import HEADER_BYTES, seal, unseal
from pyllama_spec.errors import ArgumentError
from pyllama_spec.llama.caches import BaseLlamaCache, StateKey
from pyllama_spec.llama.open_model import LlamaState

_MAGIC, _VERSION, _SUFFIX = b"pspx", 1, ".prefix"
_LENGTH = struct.Struct("<I")
_WHAT = "a file of what was read"
# A state is worth a file where reading its tokens again takes longer than reading the file.
MIN_TOKENS = 256
# A text that has grown by so many tokens has its state written again.
_MIN_NEW = 64
_MAX_QUEUED = 2


class _Header(msgspec.Struct, kw_only=True):
    """The header of a state's file."""

    owner: str
    model: str
    settings: list[tuple[str, str]]
    n_decoded: int
    n_given: int | None
    tokens: list[int]
    n_memory: int
    n_drafter: int | None


@dataclass(frozen=True, slots=True)
class _Known:
    """A known file: its owner, tokens and size."""

    owner: str
    tokens: npt.NDArray[np.int32]
    n_bytes: int


class PrefixFolder(BaseLlamaCache):
    """See the module's docstring; for Llama.set_cache().

    Args:
        folder: the folder; created with access for its owner alone.
        capacity_bytes: the most bytes of all files; the least recently used are removed first.
        min_tokens: the length of the shortest stored text.

    Raises:
        ArgumentError: the folder cannot be created or read.

    """

    def __init__(
        self, folder: str | os.PathLike[str], capacity_bytes: int, min_tokens: int = MIN_TOKENS
    ) -> None:
        super().__init__(capacity_bytes)
        self._folder, self._min_tokens = Path(folder), count(min_tokens, "min_tokens", 1)
        self._known: dict[str, _Known] = {}
        self._lock = threading.Lock()
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            files = [one for one in self._folder.iterdir() if one.suffix == _SUFFIX]
            for path in sorted(files, key=lambda one: one.stat().st_mtime_ns):
                self._learn(path)
        except OSError as error:
            raise ArgumentError(
                f"prompts cannot be kept in {self._folder}: {error.strerror}"
            ) from None
        self._queue: queue.Queue[tuple[str, LlamaState] | None] = queue.Queue(_MAX_QUEUED)
        self._writer = threading.Thread(target=self._write_all, name="pyllama_spec-prefixes")
        self._writer.daemon = True
        self._writer.start()

    def _learn(self, path: Path) -> None:
        """Registers an existing file; its content is checked when used."""
        n_bytes = path.stat().st_size
        with path.open("rb") as file:
            data = file.read(HEADER_BYTES + _LENGTH.size)
            if data.startswith(_MAGIC) and len(data) == HEADER_BYTES + _LENGTH.size:
                (n,) = _LENGTH.unpack_from(data, HEADER_BYTES)
                data += file.read(min(n, n_bytes))  # a damaged file may say any length
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
                n = min(len(asked), len(one.tokens))
                differ = np.flatnonzero(asked[:n] != one.tokens[:n])
                n = int(differ[0]) if len(differ) else n
                if n > (best[1] if best else 0):
                    best = name, n
        return best

    def __getitem__(self, key: Sequence[int]) -> LlamaState:
        """The state with the longest prefix of a text; KeyError if none is worth its file."""
        closest = self._closest(key)
        if closest is None or closest[1] < self._min_tokens:
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
        return closest is not None and closest[1] >= self._min_tokens

    def __setitem__(self, key: Sequence[int], value: LlamaState) -> None:
        """Queues the write of a state, unless it is short or adds little to a stored one."""
        tokens, owner = value.tokens[: value.n_tokens], value.owner
        if len(tokens) < self._min_tokens or owner is None:
            return
        closest = self._closest(StateKey(tokens, owner))
        if closest is not None and closest[1] > len(tokens) - _MIN_NEW:
            return
        with suppress(queue.Full):
            self._queue.put_nowait((owner, value))

    def close(self) -> None:
        """Waits for all pending writes. May be called twice."""
        if self._writer.is_alive():
            self._queue.put(None)
            self._writer.join()

    def _write_all(self) -> None:
        while (one := self._queue.get()) is not None:
            with suppress(OSError):  # a full disk: it is not kept
                self._write(*one)

    def _write(self, owner: str, state: LlamaState) -> None:
        data = _bytes_of(owner, state)
        if len(data) > self.capacity_bytes:
            return
        tokens = np.asarray(state.tokens[: state.n_tokens], np.int32)
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
        for name in list(self._oldest()):
            if self.cache_size + n_bytes <= self.capacity_bytes:
                return
            self._drop(name)

    def _oldest(self) -> Iterator[str]:
        with self._lock:
            return iter(list(self._known))

    def _drop(self, name: str) -> None:
        with self._lock:
            self._known.pop(name, None)
        self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}{_SUFFIX}"


def _bytes_of(owner: str, state: LlamaState) -> bytes:
    header = msgspec.json.encode(
        _Header(
            owner=owner, model=state.model, settings=list(state.settings or ()),
            n_decoded=state.n_decoded, n_given=state.n_given, tokens=list(state.tokens),
            n_memory=len(state.memory),
            n_drafter=None if state.drafter is None else len(state.drafter),
        )
    )  # fmt: skip
    parts = (_LENGTH.pack(len(header)), header, state.memory, state.drafter or b"")
    return seal(bytearray(bytes(HEADER_BYTES) + b"".join(parts)), _MAGIC, _VERSION)


def _header_of(data: bytes) -> _Header | None:
    """The header of a file's first bytes; None if invalid."""
    body = memoryview(data)[HEADER_BYTES:]
    if data[: len(_MAGIC)] != _MAGIC or len(body) < _LENGTH.size:
        return None
    (n,) = _LENGTH.unpack_from(body)
    try:
        return msgspec.json.decode(body[_LENGTH.size : _LENGTH.size + n], type=_Header)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _state_of(data: bytes) -> LlamaState:
    """Reads the state of a file."""
    body, header = unseal(data, _MAGIC, _VERSION, _WHAT), _header_of(data)
    if header is None:
        raise ArgumentError(f"{_WHAT} has no header")
    begin = _LENGTH.size + _LENGTH.unpack_from(body)[0]
    end = begin + header.n_memory
    settings = tuple((name, value) for name, value in header.settings)
    return LlamaState(
        tuple(header.tokens), header.n_decoded, bytes(body[begin:end]),
        None if header.n_drafter is None else bytes(body[end : end + header.n_drafter]),
        None, header.model, header.n_given, settings,
    )  # fmt: skip
