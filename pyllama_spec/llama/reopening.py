"""Opens a Llama again in place, after a failure that left it unusable."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from pyllama_spec.errors import ForkedError, PyllamaSpecError, same_kind

# What a program may have set since the model was opened, beside the chat format and the seeds.
_ATTRIBUTES = ("chat_handler", "verbose", "spm_infill", "last_n_tokens_size")


class _Kept(NamedTuple):
    """What a program has set on a Llama."""

    chat_format: str | None
    seed: int | None
    attributes: dict[str, Any]

    def put_back(self, llm: Any) -> None:
        vars(llm).update(self.attributes)
        llm._opened.seeds.state = self.seed
        if llm.chat_format != self.chat_format:
            llm.chat_format = self.chat_format


class Reopening:
    """The reopening of one Llama: by one thread at a time, and not after its close()."""

    def __init__(self) -> None:
        self._lock, self._n_closes = threading.Lock(), 0
        self._kept: _Kept | None = None

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
                self._kept = _Kept(llm.chat_format, llm._opened.seeds.state, attributes)
            before = llm._embeddings.failure or llm._opened.failure
            llm._opened.model.refusal = before  # of requests that wait
            close()
            try:
                begin(llm, **llm._opened_with.keywords())
                self._kept.put_back(llm)
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
