"""Caches the states of past requests, so that a prompt with a cached prefix is read once."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import suppress

from pyllama_spec.errors import ArgumentError
from pyllama_spec.llama.open_model import LlamaState, OpenModel
from pyllama_spec.speculative import SequenceState
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

    def is_met_by(self, known: StateKey) -> bool:
        """Whether a state with the key `known` fits a request with this key."""
        return self.owner is None or known.owner == self.owner


def _asked(key: Sequence[int]) -> StateKey:
    return key if isinstance(key, StateKey) else StateKey(key)


def _stored(key: Sequence[int], state: LlamaState) -> StateKey:
    return StateKey(key, state.owner)


def longest_token_prefix(a: Iterable[int], b: Iterable[int]) -> int:
    """The length of the common prefix of two token lists."""
    n = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        n += 1
    return n


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
    own = (known for known in keys if key.is_met_by(known))
    best = max(own, key=lambda known: longest_token_prefix(known, key), default=None)
    return best if best is not None and longest_token_prefix(best, key) > 0 else None


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
        stored = _stored(key, value)
        self.cache_state.pop(stored, None)
        self.cache_state[stored] = value
        while self.cache_state and self.cache_size > self.capacity_bytes:
            self.cache_state.popitem(last=False)


LlamaCache = LlamaRAMCache


class KeptStates:
    """Loads and stores the states of one model's requests, in the current cache of its Llama."""

    def __init__(self, opened: OpenModel) -> None:
        self._opened = opened
        # Caches are of anyone's making; several threads come to them.
        self._lock = threading.Lock()

    def find(self, cache: BaseLlamaCache, prompt: Sequence[int]) -> LlamaState | None:
        """The cached state with most of a prompt; ignores a state that does not fit."""
        owner = self._opened.owner
        try:
            with self._lock:
                state = cache[StateKey(prompt, owner)]
        except KeyError:
            return None
        return state if state.owner == owner else None

    def keep(self, cache: BaseLlamaCache, tokens: Sequence[int], state: LlamaState) -> None:
        """Stores a state in a cache."""
        with self._lock:
            cache[tokens] = state


class KeptState:
    """The keeper of a request: its cached state, and its state for the cache."""

    def __init__(self, opened: OpenModel, state: LlamaState | None) -> None:
        self._opened, self._state = opened, state
        # Those of the state and of the request, whatever is set before its turn comes.
        self._adapters = opened.adapters
        # The content of its sequence at the end of its text.
        self.behind_it: LlamaState | None = None

    def before(self, state: SequenceState, prompt: Sequence[int]) -> None:
        """Restores the cached state if it holds more of the prompt than the sequence."""
        cached, self._state = self._state, None
        if cached is None:
            return
        n_held = n_common(state.tokens[: state.n_decoded], prompt)
        if n_common(cached.tokens[: cached.n_decoded], prompt) > n_held:
            with suppress(ArgumentError):  # damaged, or too long for this context: it is read
                self._opened.restore(state, cached, self._adapters)

    def behind(self, state: SequenceState) -> None:
        """Copies the content of the sequence."""
        self.behind_it = self._opened.state_of(state)
