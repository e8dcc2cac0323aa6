"""Stores prefixes of past prompts in the host's memory, with the text after them.

What a sequence holds is copied here before another prompt takes its place, and goes back when a
prompt comes that begins like it. A store belongs to one context, so that model and settings are the
same anyway; adapters may differ, and are in the key.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pyllama_spec.engine.checks import count
from pyllama_spec.speculative.rollback import Checkpoint

Ids = npt.NDArray[np.int32]
# What sequences are computed with, beside model and settings: engine/memory_settings.py.
AdaptersKey = tuple[tuple[str, float], ...]

# Each is compared with every prompt that begins.
_MAX_ENTRIES = 256


@dataclass(frozen=True, slots=True, eq=False)
class StoredPrefix:
    """A copy of a sequence.

    Attributes:
        tokens: [n] int32, the tokens in its memory.
        key: the settings that it was computed with.
        first: the first position that it holds; a window drops earlier ones.
        memory: the engine's bytes of it.
        drafter: the drafter's bytes; None if the drafter is told the tokens again.
        checkpoints: earlier checkpoints of a recurrent state.
    """

    tokens: Ids
    key: AdaptersKey
    first: int
    memory: memoryview
    drafter: bytes | None
    checkpoints: tuple[Checkpoint, ...] = ()

    @property
    def n_tokens(self) -> int:
        """The number of tokens of the copy."""
        return len(self.tokens)

    @property
    def n_bytes(self) -> int:
        """The size in bytes."""
        states = sum(one.data.nbytes for one in self.checkpoints)
        own = self.tokens.nbytes + self.memory.nbytes + len(self.drafter or b"")
        return own + states


class PrefixStore:
    """Copies of sequences in order of last use, the newest last."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = count(max_bytes, "max_bytes", 0, sys.maxsize)
        self._entries: list[StoredPrefix] = []
        self.n_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: StoredPrefix) -> None:
        """Adds a copy; drops the copies that it extends, and the oldest for room.

        One that is larger than the whole store is not kept.
        """
        size = entry.n_bytes
        if size > self.max_bytes:
            return
        for other in self._entries.copy():
            n = other.n_tokens
            if other.key == entry.key and n_common_ids(other.tokens, entry.tokens) == n:
                self.remove(other)
        while self._entries and (
            self.n_bytes + size > self.max_bytes or len(self._entries) >= _MAX_ENTRIES
        ):
            self.remove(self._entries[0])
        self._entries.append(entry)
        self.n_bytes += size

    def remove(self, entry: StoredPrefix) -> None:
        """Drops a copy if it is stored."""
        if entry in self._entries:
            self._entries.remove(entry)
            self.n_bytes -= entry.n_bytes

    def touch(self, entry: StoredPrefix) -> None:
        """Marks a copy as used now, if it is stored."""
        if entry in self._entries:
            self._entries.remove(entry)
            self._entries.append(entry)

    def clear(self) -> None:
        """Drops all copies."""
        self._entries.clear()
        self.n_bytes = 0

    def holds(self, tokens: Ids, key: AdaptersKey) -> bool:
        """Whether a copy has all of these tokens."""
        n = len(tokens)
        return any(e.key == key and n_common_ids(e.tokens, tokens) == n for e in self._entries)

    def closest(
        self, tokens: Ids, key: AdaptersKey, reach: Callable[[StoredPrefix, int], int]
    ) -> tuple[StoredPrefix | None, int, int]:
        """The copy with the most reusable tokens, or None, and how many it restores.

        And the longest common prefix with any copy, usable or not. reach says how many tokens a
        copy can restore, given it and the length of its common prefix.
        """
        best: StoredPrefix | None = None
        n_best = n_known = 0
        for entry in self._entries:
            if entry.key != key:
                continue
            n = n_common_ids(entry.tokens, tokens)
            n_known = max(n_known, n)
            if n > n_best and (n_reached := reach(entry, n)) > n_best:
                best, n_best = entry, n_reached
        return best, n_best, n_known


def as_ids(tokens: Sequence[int]) -> Ids:
    """Tokens as an array, [n] int32."""
    return np.array(tokens, dtype=np.int32)


def n_common_ids(a: Ids, b: Ids) -> int:
    """The length of the common prefix."""
    n = min(len(a), len(b))
    differ = a[:n] != b[:n]
    first = int(differ.argmax()) if n else 0
    return first if n and differ[first] else n
