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


class LlamaRAMCache(BaseLlamaCache):
    """A cache in memory."""

    def __init__(self, capacity_bytes: int = 2 * _GIB) -> None:
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


# Caches are of anyone's making; several threads come to them.
_LOCK = threading.Lock()


class CachedRuns:
    """The runs of one prompt, which a cache may have a state for, and gets the states of."""

    def __init__(self, opened: OpenModel, cache: BaseLlamaCache, runs: Sequence[Run]) -> None:
        self._opened, self._cache = opened, cache
        self._kept: dict[int, LlamaState] = {}
        state: LlamaState | None = None
        with suppress(KeyError), _LOCK:
            state = cache[StateKey(runs[0].request.prompt, opened.owner)]
        for i, run in enumerate(runs):
            # A cache of the user's own may give the state of another model.
            if state is not None and state.owner == opened.owner:
                # The adapters of the state and of the request, whatever is set meanwhile.
                run.before = partial(
                    _restore, opened, state, run.request.prompt, run.request.adapters
                )
            run.after = partial(self._keep, i)

    def _keep(self, i: int, sequence: SequenceState) -> None:
        self._kept[i] = self._opened.state_of(sequence)

    def store(self, records: Sequence[GenerationRecord]) -> None:
        """Gives the cache the states of the runs, which have ended."""
        for i, record in enumerate(records):
            if (state := self._kept.pop(i, None)) is not None:
                with _LOCK:
                    self._cache[[*record.prompt_tokens, *record.tokens]] = state


def _restore(
    opened: OpenModel,
    state: LlamaState,
    prompt: Sequence[int],
    adapters: Adapters,
    sequence: SequenceState,
) -> None:
    """Restores a state that holds more of a prompt than a sequence does."""
    n_held = n_common(sequence.tokens[: sequence.n_decoded], prompt)
    if n_common(state.tokens[: state.n_decoded], prompt) > n_held:
        with suppress(ArgumentError):  # damaged, or too long for this context: it is read
            opened.restore(sequence, state, adapters)
