"""Loads request states from a cache of states, and stores them there."""

from __future__ import annotations

import threading
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
