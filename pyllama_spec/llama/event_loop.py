"""Llama's calls in an event loop: each runs in a thread, with the settings at its call."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from pyllama_spec.errors import DeadlineError
from pyllama_spec.llama.open_model import OpenModel
from pyllama_spec.llama.responses import Deferred, check_stream
from pyllama_spec.requests.stream import Stream

if TYPE_CHECKING:
    from asyncio import Future
    from concurrent.futures import ThreadPoolExecutor

# Threads in which templates, grammars and tokens are made: the loop's own are the program's.
_N_THREADS, THREADS = 8, "pyllama_spec-requests"
# A schema may take a second to become a grammar: what asks for none does not wait for a thread.
_SLOW_OPTIONS = ("response_format", "grammar", "tools", "functions")


@lru_cache(maxsize=2)
def _executor(pid: int, is_slow: bool) -> ThreadPoolExecutor:
    """The executor of a process: a forked child has none of its parent's threads."""
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(_N_THREADS, THREADS)


async def answered(
    create: Callable[..., Any],
    opened: OpenModel,
    options: Sequence[Any],
    more: Mapping[str, Any],
    *,
    stream: bool | Deferred,
) -> Any:
    """The result of a Llama.create_... call in an event loop; `timeout_s` counts from now.

    A Deferred gives the handle: Deferred.WHOLE that of a response which is computed as a whole.
    """
    import asyncio  # not needed to open a model

    is_stream, wants_handle = check_stream(stream), isinstance(stream, Deferred)
    deferred = Deferred.CHUNKS if is_stream else Deferred.WHOLE
    # Options by place are the prompt, and rarely others.
    is_slow = len(options) > 1 or any(more.get(name) for name in _SLOW_OPTIONS)
    runner = opened.runtime.runner
    arrival = runner.arrive(is_slow=is_slow)
    try:
        context = copy_context()
        context.run(opened.pin)
        call = partial(context.run, partial(create, *options, stream=deferred, **more))
        run_in_thread = partial(
            asyncio.get_running_loop().run_in_executor, _executor(os.getpid(), is_slow)
        )
        # No name for the future: an error knows this frame, and the future knows the error.
        handle: Any = await _made(run_in_thread(call), more.get("timeout_s"))
        if not isinstance(handle, Stream):  # of a chat handler
            return handle
        try:
            handle.start(is_whole=not is_stream, arrival=arrival)
        except BaseException:  # of several answers the first ones may be in line
            handle.abort()
            raise
    finally:
        runner.made(arrival)
    return handle if is_stream or wants_handle else await handle


async def _made(work: Future[Any], timeout_s: object) -> Any:
    """The result of a call that another thread runs."""
    import asyncio

    limit = timeout_s if isinstance(timeout_s, (int, float)) and timeout_s > 0 else None
    try:
        done, _ = await asyncio.wait([work], timeout=limit)
    except asyncio.CancelledError:
        work.add_done_callback(_give_up)
        raise
    if not done:
        work.add_done_callback(_give_up)
        raise DeadlineError(
            f"the request did not start within `timeout_s={timeout_s}`", remedy="give it more time"
        )
    try:
        return work.result()
    finally:
        # An error knows this frame, which would know it: a prompt of megabytes stayed with it.
        del work, done


def _give_up(work: Future[Any]) -> None:
    """Cancels a request that nobody waits for, once it exists."""
    if not work.cancelled() and work.exception() is None and isinstance(work.result(), Stream):
        work.result().abort()
