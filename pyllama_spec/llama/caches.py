"""Caches the states of past requests, so that a prompt with a cached prefix is read once.

A state on disk is a zip file, readable only by its owner, which names its model and settings.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np
import numpy.typing as npt

from pyllama_spec.drafters.base import n_common_ids
from pyllama_spec.errors import ArgumentError, ContextFullError, warn
from pyllama_spec.files import lock, remove_unlocked
from pyllama_spec.llama.open_model import LlamaState, OpenModel
from pyllama_spec.requests.run import GenerationRecord, Run
from pyllama_spec.speculative import Adapters, SequenceState
from pyllama_spec.speculative.sequence import n_common

_SUFFIX, _PART = ".prefix", ".part"
# Caches are of anyone's making; several threads come to them.
_LOCK = threading.Lock()


class StateKey(tuple[int, ...]):
    """The tokens of a state and its owner (LlamaState.owner); None matches any owner.

    A cache of the user's own sees it as a tuple of ids.
    """

    owner: str | None

    def __new__(cls, tokens: Iterable[int], owner: str | None = None) -> StateKey:
        """The key of these tokens."""
        key = super().__new__(cls, tokens)
        key.owner = owner
        return key


class BaseLlamaCache(ABC):
    """The interface of Llama.set_cache(): maps tokens to states.

    Llama asks with a StateKey. A cache that does not look at its owner, and gives a state of
    another model or other adapters, has given none: the text is read.
    """

    def __init__(self, capacity_bytes: int = 2 << 30) -> None:
        if not isinstance(capacity_bytes, int) or capacity_bytes < 0:
            raise ArgumentError("capacity_bytes", capacity_bytes, "a number of bytes")
        self.capacity_bytes = capacity_bytes

    @property
    @abstractmethod
    def cache_size(self) -> int:
        """The size of all states in bytes."""

    @abstractmethod
    def __getitem__(self, key: Sequence[int]) -> LlamaState:
        """The state with the longest common prefix with the tokens; raises KeyError for none."""

    @abstractmethod
    def __contains__(self, key: Sequence[int]) -> bool: ...

    @abstractmethod
    def __setitem__(self, key: Sequence[int], value: LlamaState) -> None:
        """Stores a state, and drops the oldest states for room."""


class LlamaRAMCache(BaseLlamaCache):
    """A cache in memory."""

    def __init__(self, capacity_bytes: int = 2 << 30) -> None:
        super().__init__(capacity_bytes)
        # By tokens and owner.
        self.cache_state: OrderedDict[tuple[tuple[int, ...], str], LlamaState] = OrderedDict()

    @property
    def cache_size(self) -> int:
        """The size of all states in bytes."""
        return sum(state.llama_state_size for state in self.cache_state.values())

    def _closest(self, key: Sequence[int]) -> tuple[tuple[int, ...], str] | None:
        owner = getattr(key, "owner", None)
        own = (known for known in self.cache_state if owner in (None, known[1]))
        best = max(own, key=lambda known: n_common(known[0], key), default=None)
        return best if best is not None and n_common(best[0], key) > 0 else None

    def __getitem__(self, key: Sequence[int]) -> LlamaState:
        closest = self._closest(key)
        if closest is None:
            raise KeyError("no state begins with any of these tokens")
        self.cache_state.move_to_end(closest)
        return self.cache_state[closest]

    def __contains__(self, key: Sequence[int]) -> bool:
        return self._closest(key) is not None

    def __setitem__(self, key: Sequence[int], value: LlamaState) -> None:
        stored = tuple(key), value.owner
        self.cache_state[stored] = value
        self.cache_state.move_to_end(stored)
        while self.cache_state and self.cache_size > self.capacity_bytes:
            self.cache_state.popitem(last=False)


LlamaCache = LlamaRAMCache


def cached(
    opened: OpenModel,
    cache: BaseLlamaCache,
    runs: Sequence[Run],
    load: Callable[[LlamaState], None] | None,
) -> Callable[[Sequence[GenerationRecord]], None]:
    """Has a cache's state restored before the runs of one prompt; by `load`, if that is given.

    Returns:
        The function that gives the cache the states of the runs, by their records.
    """
    kept: dict[int, LlamaState] = {}
    state: LlamaState | None = None
    prompt = runs[0].request.prompt
    with suppress(KeyError), _LOCK:
        state = cache[StateKey(prompt, opened.owner)]
    if state is not None and state.owner != opened.owner:
        state = None  # of a cache of the user's own
    if state is not None and load is not None:
        with opened.runner.visit() as sequence:
            is_worth = _holds_more(state, sequence, prompt)
        if is_worth:
            with suppress(ContextFullError):  # as without a cache: the prompt is read
                load(state)
        state = None

    def keep(i: int, sequence: SequenceState) -> None:
        kept[i] = opened.state_of(sequence)

    def store(records: Sequence[GenerationRecord]) -> None:
        for i, record in enumerate(records):
            if i in kept:
                with _LOCK:
                    cache[[*record.prompt_tokens, *record.tokens]] = kept.pop(i)

    for i, run in enumerate(runs):
        if state is not None:
            # The adapters of the state and of the request, whatever is set meanwhile.
            run.before = partial(_restore, opened, state, prompt, run.request.adapters)
        run.after = partial(keep, i)
    return store


def _holds_more(state: LlamaState, sequence: SequenceState, prompt: Sequence[int]) -> bool:
    """Whether a state holds more of a prompt than a sequence."""
    n_held = n_common(sequence.tokens[: sequence.n_decoded], prompt)
    return n_common(state.tokens[: state.n_decoded], prompt) > n_held


def _restore(
    opened: OpenModel,
    state: LlamaState,
    prompt: Sequence[int],
    adapters: Adapters,
    sequence: SequenceState,
) -> None:
    if _holds_more(state, sequence, prompt):
        with suppress(ArgumentError):  # damaged, or too long for this context: it is read
            opened.restore(sequence, state, adapters)


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
        remove_unlocked(self._folder, f"*{_PART}")
        for path in sorted(files, key=_used_ns):
            with suppress(*_UNREADABLE):  # of someone else, damaged, or just deleted
                if path.is_file():
                    with ZipFile(path) as file:
                        owner, tokens = str(_about(file)["owner"]), _tokens(file)
                    self._known[path.stem] = _Known(owner, tokens, path.stat().st_size)

    @property
    def cache_size(self) -> int:
        """The size of all files in bytes."""
        with self._lock:
            return sum(one.n_bytes for one in self._known.values())

    def _closest(self, key: Sequence[int]) -> tuple[str, int]:
        """The file with the longest prefix of a text, and the prefix's length, 0 for none."""
        owner = getattr(key, "owner", None)
        asked = np.asarray(key, np.int32)
        best = "", 0
        with self._lock:
            for name, one in self._known.items():
                if owner is not None and one.owner != owner:
                    continue
                n = n_common_ids(asked, one.tokens)
                if n > best[1]:
                    best = name, n
        return best

    def __getitem__(self, key: Sequence[int]) -> LlamaState:
        """The state with the longest prefix of a text; KeyError if none is worth its file."""
        name, n = self._closest(key)
        if n < self.min_tokens:
            raise KeyError("no file begins with enough of these tokens")
        path = self._path(name)
        try:
            with ZipFile(path) as file:
                state = _state_of(file)
            os.utime(path)
        except _UNREADABLE:
            self._drop(name)
            raise KeyError("the file is gone, or damaged") from None
        with self._lock:  # the last used one is the last to be deleted
            if name in self._known:
                self._known[name] = self._known.pop(name)
        return state

    def __contains__(self, key: Sequence[int]) -> bool:
        return self._closest(key)[1] >= self.min_tokens

    def __setitem__(self, key: Sequence[int], value: LlamaState) -> None:
        """Writes a state, unless it is short or adds little to a stored one."""
        tokens, owner = value.tokens[: value.n_tokens], value.owner
        if len(tokens) < self.min_tokens:
            return
        n = self._closest(StateKey(tokens, owner))[1]
        if n == 0 or n <= len(tokens) - self.min_new:
            self._put(owner, value)

    def _put(self, owner: str, state: LlamaState) -> None:
        try:
            self._write(owner, state)
        except OSError as error:  # the text that it is the state of is there, and has to be given
            warn(f"a state is not kept in {self._folder}: {error.strerror}")

    def _write(self, owner: str, state: LlamaState) -> None:
        tokens = np.asarray(state.tokens[: state.n_tokens], np.int32)
        import hashlib  # loads a library of its own

        name = hashlib.sha256(owner.encode() + tokens.tobytes()).hexdigest()[:32]
        # mkstemp() makes it 0600, and it is renamed when it is whole.
        number, made = tempfile.mkstemp(dir=self._folder, suffix=_PART)
        try:
            with os.fdopen(number, "wb") as raw, ZipFile(raw, "w") as file:
                lock(raw)
                _put_state(file, owner, state)
            n_bytes = Path(made).stat().st_size
            if n_bytes <= self.capacity_bytes:
                self._make_room(n_bytes)
                Path(made).replace(self._path(name))
                with self._lock:
                    self._known[name] = _Known(owner, tokens, n_bytes)
        finally:
            Path(made).unlink(missing_ok=True)

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


def _used_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


# What reading a file raises that is damaged, or of anyone's making.
_UNREADABLE = (
    OSError, BadZipFile, ValueError, TypeError, KeyError, EOFError, OverflowError, RuntimeError,
    MemoryError,
)  # fmt: skip
# What describes a state beside its tokens and bytes.
_ABOUT = ("model", "settings", "n_decoded", "n_given")


def _put_state(file: ZipFile, owner: str, state: LlamaState) -> None:
    about = {"owner": owner, **{name: getattr(state, name) for name in _ABOUT}}
    file.writestr("about.json", json.dumps(about))
    file.writestr("tokens", np.asarray(state.tokens, "<i4").tobytes())
    file.writestr("memory", state.memory)
    if state.drafter is not None:
        file.writestr("drafter", state.drafter)


def _read(file: ZipFile, name: str) -> bytes:
    """A part of a file, whose checksum is checked; nothing in it was compressed."""
    info = file.getinfo(name)
    if info.compress_type or info.file_size != info.compress_size:
        raise ValueError(f"{name} is compressed")
    return file.read(info)


def _about(file: ZipFile) -> dict[str, Any]:
    about: dict[str, Any] = json.loads(_read(file, "about.json"))
    return about


def _tokens(file: ZipFile) -> npt.NDArray[np.int32]:
    return np.frombuffer(_read(file, "tokens"), "<i4").astype(np.int32)


def _state_of(file: ZipFile) -> LlamaState:
    about, tokens = _about(file), tuple(_tokens(file).tolist())
    model, settings, n_decoded, n_given = (about[name] for name in _ABOUT)
    is_sound = isinstance(n_given, int | None) and isinstance(n_decoded, int)
    if not is_sound or not isinstance(settings, list) or not 0 <= n_decoded <= len(tokens):
        raise ValueError("its settings or counts are damaged")
    drafter = _read(file, "drafter") if "drafter" in file.namelist() else None
    pairs = tuple((str(name), str(value)) for name, value in settings)
    return LlamaState(
        tokens, n_decoded, _read(file, "memory"), drafter, None, str(model), n_given, pairs
    )
