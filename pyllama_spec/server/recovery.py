"""Opens the model that a server was given again, after it failed.

A failure in the middle of a decode leaves a context in an unknown state, and so does the loss of a
server with layers. The engine does not free a context in an unknown state, so the number of such
failures is bounded.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, MutableSet
from time import monotonic

from pyllama_spec.errors import OutOfMemoryError
from pyllama_spec.llama import Llama
from pyllama_spec.llama.loading import WATCH
from pyllama_spec.server.api_errors import NO_RETRY, ApiError
from pyllama_spec.server.loader import in_daemon
from pyllama_spec.server.served_model import ServedModel
from pyllama_spec.server.service import Service
from pyllama_spec.server.serving import Serving, log

_LAST_USERS_S, _LOOK_S = 2.0, 0.02
# Between two tries without a request, in units of the Retry-After.
_N_RETRY = 3


class Recovery:
    """Reopens the model of a server without a list, which its caller opened.

    Args:
        serving: the server.
        threads: the threads of the server's loads.
        note_failure: called with the error of a try.
        watch: called during a load, with its progress; raises once the server stops.

    """

    def __init__(
        self,
        serving: Serving,
        threads: MutableSet[threading.Thread],
        note_failure: Callable[[ServedModel, Exception], None],
        watch: Callable[[float], None],
    ) -> None:
        self._serving, self._threads = serving, threads
        self._note_failure, self._watch = note_failure, watch

    async def last_users(self, one: ServedModel) -> None:
        """Waits until no request uses a model that failed, so that each gets its own error.

        Bounded: a client that does not read its answer must not delay others.
        """
        until = monotonic() + _LAST_USERS_S
        while one.n_users and monotonic() < until:
            await asyncio.sleep(_LOOK_S)

    async def reopen(self, one: ServedModel) -> None:
        """Opens the model again. After an error it is tried again later, without a request too."""
        failed = one.service
        assert failed is not None
        try:
            await self.last_users(one)
            one.note_leak()
            if one.is_given_up:
                return
            if one.failure is None:
                log.warning("%s failed and is being reopened", one.name)
            await in_daemon(lambda: self._reopened(failed.llm), lambda _: None, self._threads)
            one.failure = None
            one.service = Service(failed.llm, failed.settings, one.name, failed.metrics)
            log.warning("%s was reopened", one.name)
        except Exception as error:  # noqa: BLE001 - reported to the model's requests, and logged
            self._note_failure(one, error)
            one.n_leaks += isinstance(error, OutOfMemoryError)
            # A proxy sends no request to a server that is not ready.
            wait_s = _N_RETRY * self._serving.settings.retry_after_s
            one.cancel_expiry()
            one.expiry = asyncio.get_running_loop().call_later(wait_s, self._retry, one)
        finally:
            one.loading = None

    def _retry(self, one: ServedModel) -> None:
        is_wanted = one.has_failed and not (one.is_given_up or self._serving.is_stopping)
        if is_wanted and one.loading is None:
            one.loading = asyncio.ensure_future(self.reopen(one))

    def _reopened(self, llm: Llama) -> None:
        WATCH.set(self._watch)
        llm.reopen()


def given_up(name: str) -> ApiError:
    """The error of a request to a model that failed too often."""
    return ApiError(
        500, f"the model {name!r} failed too often; whoever runs the server has to restart it",
        "model_failed", headers=NO_RETRY,
    )  # fmt: skip
