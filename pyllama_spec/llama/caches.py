"""Caches the states of past requests, so that a prompt with a cached prefix is read once."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial

from pyllama_spec.errors import ArgumentError
from pyllama_spec.llama.open_model import LlamaState, OpenModel
from pyllama_spec.requests.run import GenerationRecord, Run
from pyllama_spec.speculative import Adapters, SequenceState
from pyllama_spec.speculative.sequence import n_common

_GIB = 1 << 30


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

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, tuple) or self.owner != getattr(other, "owner", None):
            return False
        return super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = tuple.__hash__


def _asked(key: Sequence[int]) -> StateKey:
    return key if isinstance(key, StateKey) else StateKey(key)


class BaseLlamaCache(ABC):
    """The interface of Llama.set_cache(): maps tokens to states.

    Llama asks with a StateKey. A cache that does not look at its owner, and gives a state of
    another model or other adapters, has given none: the text is read.
    """

    def __init__(self, capacity_bytes: int = 2 * _GIB) -> None:
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


def _closest(keys: Iterable[StateKey], key: StateKey) -> StateKey | None:
    own = (known for known in keys if key.owner in (None, known.owner))
    best = max(own, key=lambda known: n_common(known, key), default=None)
    return best if best is not None and n_common(best, key) > 0 else None


class LlamaRAMCache(BaseLlamaCache):
    """A cache in memory."""

    def __init__(self, capacity_bytes: int = 2 * _GIB) -> None:
        super().__init__(capacity_bytes)
        self.cache_state: OrderedDict[StateKey, LlamaState] = OrderedDict()

    @property
    def cache_size(self) -> int:
        """The size of all states in bytes."""
        return sum(state.llama_state_size for state in self.cache_state.values())

    def __getitem__(self, key: Sequence[int]) -> LlamaState:
        closest = _closest(self.cache_state, _asked(key))
        if closest is None:
            raise KeyError("no state begins with any of these tokens")
        self.cache_state.move_to_end(closest)
        return self.cache_state[closest]

    def __contains__(self, key: Sequence[int]) -> bool:
        return _closest(self.cache_state, _asked(key)) is not None

    def __setitem__(self, key: Sequence[int], value: LlamaState) -> None:
        stored = StateKey(key, value.owner)
        self.cache_state.pop(stored, None)
        self.cache_state[stored] = value
        while self.cache_state and self.cache_size > self.capacity_bytes:
            self.cache_state.popitem(last=False)


LlamaCache = LlamaRAMCache


# Caches are of anyone's making; several threads come to them.
_LOCK = threading.Lock()


class CachedRuns:
    """The runs of one prompt, which a cache has a state for, and gets the states of.

    Args:
        opened: their model.
        cache: the cache.
        prompt: their ids.
    """

    def __init__(self, opened: OpenModel, cache: BaseLlamaCache, prompt: Sequence[int]) -> None:
        self._opened, self._cache = opened, cache
        self.state: LlamaState | None = None
        owner = opened.owner
        with suppress(KeyError), _LOCK:
            state = cache[StateKey(prompt, owner)]
            self.state = state if state.owner == owner else None  # of a cache of the user's own
        self._kept: dict[int, LlamaState] = {}

    def attend(self, runs: Sequence[Run]) -> None:
        """Restores the state before the runs, where it holds more, and copies theirs after them."""
        for i, run in enumerate(runs):
            if self.state is not None:
                # The adapters of the state and of the request, whatever is set meanwhile.
                run.before = partial(
                    _restore, self._opened, self.state, run.request.prompt, run.request.adapters
                )
            run.after = partial(self._keep, i)
        self.state = None

    def _keep(self, i: int, sequence: SequenceState) -> None:
        self._kept[i] = self._opened.state_of(sequence)

    def store(self, records: Sequence[GenerationRecord]) -> None:
        """Gives the cache the states of the runs, which have ended."""
        for i, record in enumerate(records):
            if (state := self._kept.pop(i, None)) is not None:
                with _LOCK:
                    self._cache[[*record.prompt_tokens, *record.tokens]] = state


def holds_more(state: LlamaState, sequence: SequenceState, prompt: Sequence[int]) -> bool:
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
    if holds_more(state, sequence, prompt):
        with suppress(ArgumentError):  # damaged, or too long for this context: it is read
            opened.restore(sequence, state, adapters)
