"""Llama's calls: their keywords, and how they run in an event loop.

The keywords are those of a request, and those of the call beside it. Type checkers read them from
the dataclasses; inspect.signature(), help() and notebooks from what the decorators set. Their order
is llama-cpp-python's, whose programs pass some by position.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field, fields
from functools import lru_cache, partial, wraps
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    overload,
)

from pyllama_spec.chat.template import Message
from pyllama_spec.errors import DeadlineError
from pyllama_spec.llama.responses import Deferred, Response, check_stream
from pyllama_spec.requests.options import RequestOptions
from pyllama_spec.requests.stream import Stream

if TYPE_CHECKING:
    from asyncio import Future
    from concurrent.futures import ThreadPoolExecutor

# Threads in which templates, grammars and tokens are made: the loop's own are the program's.
_N_THREADS, THREADS = 8, "pyllama_spec-requests"

_P = ParamSpec("_P")
_Whole = TypeVar("_Whole", covariant=True)
_Chunks = TypeVar("_Chunks", covariant=True)
# One prompt, as text or as ids; or a list of them.
Prompts = str | bytes | Sequence[int] | Sequence[str | bytes] | Sequence[Sequence[int]]


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


TEXT = _words(
    "prompt suffix max_tokens temperature top_p min_p typical_p logprobs echo stop "
    "frequency_penalty presence_penalty repeat_penalty top_k stream seed tfs_z mirostat_mode "
    "mirostat_tau mirostat_eta model stopping_criteria logits_processor grammar logit_bias"
)
CHAT = _words(
    "messages functions function_call tools tool_choice temperature top_p top_k min_p typical_p "
    "stream stop seed response_format max_tokens presence_penalty frequency_penalty "
    "repeat_penalty tfs_z mirostat_mode mirostat_tau mirostat_eta model logits_processor grammar "
    "logit_bias logprobs top_logprobs"
)


@dataclass(frozen=True, kw_only=True)
class TextCall(RequestOptions):
    """The keywords of create_completion()."""

    prompt: Prompts = field(kw_only=False)
    suffix: str | None = field(default=None, kw_only=False)
    echo: bool = False
    stream: Literal[False] = False
    model: str | None = None


@dataclass(frozen=True, kw_only=True)
class ChatCall(RequestOptions):
    """The keywords of create_chat_completion()."""

    messages: Sequence[Message] = field(kw_only=False)
    functions: Any = field(default=None, kw_only=False)
    function_call: Any = field(default=None, kw_only=False)
    tools: Any = field(default=None, kw_only=False)
    tool_choice: Any = field(default=None, kw_only=False)
    temperature: float = 0.2
    max_tokens: int | None = None
    stream: Literal[False] = False
    model: str | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    parallel_tool_calls: bool | None = None
    reasoning_format: str | None = None
    chat_template_kwargs: Mapping[str, Any] | None = None


class Call(Protocol[_P, _Whole, _Chunks]):
    """A call of Llama: with stream=True it gives chunks."""

    # fmt: off
    @overload
    def __call__(self, *args: _P.args, **keywords: _P.kwargs) -> _Whole: ...
    @overload
    def __call__(self, *args: Any, stream: Literal[True], **keywords: Any) -> _Chunks: ...
    @overload
    def __call__(self, *args: Any, **keywords: Any) -> _Whole | _Chunks: ...
    # fmt: on


_Call: TypeAlias = Call[_P, Response, Stream[Response]]
_AsyncCall: TypeAlias = Call[
    _P, Coroutine[Any, Any, Response], Coroutine[Any, Any, Stream[Response]]
]


def call_of(
    keywords: Callable[_P, object], order: Sequence[str]
) -> Callable[[Callable[..., Any]], _Call[_P]]:
    """A decorator: gives a call its keywords, their order and their defaults."""
    signature, n_needed = _signature(keywords, order), 1
    defaults = {name: signature.parameters[name].default for name in order[n_needed:]}

    def decorate(function: Callable[..., Any]) -> Any:
        @wraps(function)
        def call(self: Any, *args: Any, **given: Any) -> Any:
            by_place = dict(zip(order, args, strict=False))
            if len(args) > len(order) or by_place.keys() & given.keys():
                signature.bind(self, *args, **given)  # raises Python's TypeError
            return function(self, **{**defaults, **by_place, **given})

        call.__signature__ = signature  # type: ignore[attr-defined]
        return call

    return decorate


def async_call_of(
    keywords: Callable[_P, object], order: Sequence[str]
) -> Callable[[Callable[..., Any]], _AsyncCall[_P]]:
    """A decorator for a call in an event loop, which passes all on."""

    def decorate(function: Callable[..., Any]) -> Any:
        function.__signature__ = _signature(keywords, order)  # type: ignore[attr-defined]
        return function

    return decorate


def _signature(keywords: Any, order: Sequence[str]) -> inspect.Signature:
    by_name = {one.name: one for one in fields(keywords)}
    kinds = inspect.Parameter
    found = [kinds("self", kinds.POSITIONAL_OR_KEYWORD)]
    for name in [*order, *(one for one in by_name if one not in order)]:
        one = by_name[name]
        default = kinds.empty if name == order[0] else one.default
        kind = kinds.POSITIONAL_OR_KEYWORD if name in order else kinds.KEYWORD_ONLY
        found.append(kinds(name, kind, default=default, annotation=one.type))
    return inspect.Signature(found)


@lru_cache(maxsize=1)
def _executor(pid: int) -> ThreadPoolExecutor:
    """The executor of a process: a forked child has none of its parent's threads."""
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(_N_THREADS, THREADS)


async def answered(
    create: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any], stream: object
) -> Any:
    """The result of a Llama.create_... call in an event loop.

    A Deferred gives the handle: Deferred.WHOLE that of a response which is computed as a whole.
    """
    import asyncio  # not needed to open a model

    is_stream = check_stream(stream)
    deferred = Deferred.CHUNKS if is_stream else Deferred.WHOLE
    call = partial(create, *args, stream=deferred, **keywords)
    in_context = partial(copy_context().run, call)
    made = asyncio.get_running_loop().run_in_executor(_executor(os.getpid()), in_context)
    timeout_s = keywords.get("timeout_s")
    limit = timeout_s if isinstance(timeout_s, (int, float)) and timeout_s > 0 else None
    try:
        await asyncio.wait([made], timeout=limit)
        if not made.done():
            raise DeadlineError(
                f"the request did not start within `timeout_s={timeout_s}`",
                remedy="give it more time",
            )
        handle: Any = made.result()
    finally:
        if not made.done():
            made.add_done_callback(_give_up)
        # An error knows this frame, which would know it: a prompt of megabytes stayed with it.
        del made
    if not isinstance(handle, Stream):  # of a chat handler
        return handle
    try:
        handle.start(is_whole=not is_stream)
    except BaseException:  # of several answers the first ones may be in line
        handle.abort()
        raise
    return handle if is_stream or isinstance(stream, Deferred) else await handle


def _give_up(made: Future[Any]) -> None:
    """Cancels a request that nobody waits for, once it exists."""
    if not made.cancelled() and made.exception() is None and isinstance(made.result(), Stream):
        made.result().abort()
