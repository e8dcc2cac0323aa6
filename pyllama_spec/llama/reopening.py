"""Opens a Llama again in place, after a failure that left it unusable."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from pyllama_spec.errors import ForkedError, PyllamaSpecError, same_kind

# What a program may have set since the model was opened, beside the chat format and the seeds.
_ATTRIBUTES = ("chat_handler", "verbose", "spm_infill", "last_n_tokens_size")


class Reopening:
    """The reopening of one Llama: by one thread at a time, and not after its close()."""

    def __init__(self) -> None:
        self._lock, self._n_closes = threading.Lock(), 0
        # What a program has set: the chat format, the place in the seeds, attributes.
        self._kept: tuple[str | None, int | None, dict[str, Any]] | None = None

    def note_close(self, llm: Any) -> None:
        """Called by close(), from any thread: a model that is being opened is closed then."""
        self._n_closes += 1
        llm._opened.model.refusal = None

    def run(self, llm: Any, begin: Callable[..., None], close: Callable[[], None]) -> None:
        """See Llama.reopen()."""
        if llm._opened.model.is_forked:  # the lock's holder may not exist here
            raise ForkedError("the model belongs to the parent process; open it in the child")
        n_closes = self._n_closes
        with self._lock:
            if llm.is_usable or self._n_closes != n_closes:
                return
            if self._kept is None:  # else a failed call before this one has it
                attributes = {name: getattr(llm, name) for name in _ATTRIBUTES}
                self._kept = llm.chat_format, llm._opened.seeds.state, attributes
            before = llm._embeddings.failure or llm._opened.failure
            llm._opened.model.refusal = before  # of requests that wait
            close()
            try:
                begin(llm, **llm._opened_with.keywords())
                chat_format, seed, attributes = self._kept
                vars(llm).update(attributes)
                llm._opened.seeds.state = seed
                if llm.chat_format != chat_format:
                    llm.chat_format = chat_format
            except BaseException as error:
                close()
                cause = error if isinstance(error, PyllamaSpecError) else before
                if cause is not None:
                    llm._opened.model.refusal = same_kind(
                        cause,
                        "the model is not usable, since reopen() failed; call it again. "
                        f"{str(error) or type(error).__name__}",
                    )
                if self._n_closes != n_closes:
                    llm._opened.model.refusal = None
                raise
            self._kept = None
            if self._n_closes != n_closes:
                close()
