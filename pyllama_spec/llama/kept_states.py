"""Loads request states from a cache of states, and stores them there."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress

from pyllama_spec.errors import ArgumentError
from pyllama_spec.llama.caches import BaseLlamaCache, StateKey
from pyllama_spec.llama.open_model import LlamaState, OpenModel
from pyllama_spec.speculative import SequenceState
from pyllama_spec.speculative.sequence import n_common


class KeptStates:
    """Loads and stores the states of one model's requests, in the current cache of its Llama."""

    def __init__(self, opened: OpenModel) -> None:
        self._opened = opened
        # Caches are of anyone's making; several threads come to them.
        self._cache_lock = threading.Lock()
        self._waiting: weakref.WeakSet[KeptState] = weakref.WeakSet()
        self._waiting_lock = threading.Lock()

    def find(self, cache: BaseLlamaCache, prompt: Sequence[int]) -> LlamaState | None:
        """The cached state with most of a prompt; ignores a state that does not fit."""
        owner = self._opened.owner
        try:
            with self._cache_lock:
                state = cache[StateKey(prompt, owner)]
        except KeyError:
            return None
        return state if state.owner == owner else None

    def keep(self, cache: BaseLlamaCache, tokens: Sequence[int], state: LlamaState) -> None:
        """Stores a state in a cache."""
        with self._cache_lock:
            cache[tokens] = state

    def of_request(self, prompt: Sequence[int], state: LlamaState | None) -> KeptState:
        """The cached state of a request that has not started."""
        kept = KeptState(self, self._opened, prompt, state)
        with self._waiting_lock:
            self._waiting.add(kept)
        return kept

    def begun(self, kept: KeptState) -> None:
        """Called when a request stops waiting."""
        with self._waiting_lock:
            self._waiting.discard(kept)

    def offer(self, state: LlamaState) -> None:
        """Gives a state to waiting requests that found less when they asked the cache.

        They need not ask again, which could read a file where all requests wait for it.
        """
        with self._waiting_lock:
            waiting = list(self._waiting)
        for kept in waiting:
            kept.take(state)


class KeptState:
    """The keeper of a request: its cached state, and its state for the cache."""

    def __init__(
        self,
        all_: KeptStates,
        opened: OpenModel,
        prompt: Sequence[int],
        state: LlamaState | None,
    ) -> None:
        self._all, self._opened, self._prompt, self._state = all_, opened, tuple(prompt), state
        # The adapters of the state and of the request, whatever is set before its turn comes.
        self._adapters, self._owner = opened.adapters, opened.owner
        # The content of its sequence at the end of its text.
        self.behind_it: LlamaState | None = None

    def take(self, state: LlamaState) -> None:
        """Takes another request's state if that holds more of the prompt."""
        known = self._state
        n = 0 if known is None else n_common(known.tokens[: known.n_decoded], self._prompt)
        is_mine = state.owner is not None and state.owner == self._owner
        if is_mine and n_common(state.tokens[: state.n_decoded], self._prompt) > n:
            self._state = state

    def before(self, state: SequenceState, prompt: Sequence[int]) -> None:
        """Restores the cached state if it holds more of the prompt than the sequence."""
        self._all.begun(self)
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
        self._all.offer(self.behind_it)
