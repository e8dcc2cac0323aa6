"""Parses bodies: small ones at once, large ones in a thread, one after the other.

A C decoder holds the interpreter's lock until it is done, so a thread alone does not help. A large
body is therefore scanned first: only many small values take long to decode, and more than a request
needs are refused by a count of signs.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import lru_cache, partial
from typing import Any, TypeVar

import msgspec

from pyllama_spec.server.api_errors import ApiError, invalid_type

_T = TypeVar("_T")
# Bytes of a body that is decoded in a thread: fewer take less time than a thread's turn.
LARGE = 1 << 16
# In lists and objects of one request: 2,048 messages with many parts each have fewer.
MAX_VALUES = 100_000
# Ids of prompts, which count by themselves: the longest contexts have as many.
_MAX_NUMBERS = 1 << 20
_THREAD = "pyllama_spec-bodies"
# A moment after a large body, so that several are given back together.
_QUIET_S = 1.0
_waiting: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()
_QUOTE, _BACKSLASH = b'"', ord("\\")
# mallopt()'s name of the limit, in glibc's malloc.h.
_M_ARENA_MAX, _N_ARENAS = -8, 2


@lru_cache(maxsize=1)
def _executor(pid: int) -> ThreadPoolExecutor:
    """The only thread of the process: several would block the event loop for a time slice each."""
    return ThreadPoolExecutor(1, _THREAD)


async def apart(call: Callable[..., _T], *given: Any) -> _T:
    """Runs a call on a large body in the thread; the event loop continues."""
    whole = partial(copy_context().run, call, *given)
    return await asyncio.get_running_loop().run_in_executor(_executor(os.getpid()), whole)


async def read(raw: bytes, shape: type[_T], max_inputs: int) -> _T:
    """Parses a body as a msgspec type."""
    if len(raw) < LARGE:
        return decoded(raw, shape)
    return await apart(_decoded_large, raw, shape, max_inputs)


def give_back_soon() -> None:
    """Schedules the release of free C heap memory after large bodies.

    Texts of megabytes, their copies and their tokens leave holes, which glibc keeps. Call it in the
    event loop's thread.
    """
    loop = asyncio.get_running_loop()
    if loop not in _waiting:
        _waiting.add(loop)
        loop.call_later(_QUIET_S, _give_back, loop)


def _give_back(loop: asyncio.AbstractEventLoop) -> None:
    _waiting.discard(loop)
    _executor(os.getpid()).submit(_trim)


def _trim() -> None:
    """Does nothing if the C library lacks the call."""
    import ctypes

    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(ctypes.c_size_t(0))


def limit_arenas() -> bool:
    """Limits the C heap to two arenas, instead of eight per core.

    A dozen threads process large bodies. glibc gives each thread an arena, which keeps free memory
    below its last used piece: after an hour of large bodies 150 MiB and more. Python's own small
    objects are elsewhere, so the threads hardly wait for each other.
    """
    import ctypes

    with suppress(AttributeError, OSError, TypeError):
        return bool(ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _N_ARENAS))
    return False


def _decoded_large(raw: bytes, shape: type[_T], max_inputs: int) -> _T:
    check_signs(raw, max_inputs)
    return decoded(raw, shape)


def decoded(raw: bytes, shape: type[_T]) -> _T:
    """See read()."""
    if not raw:
        raise ApiError(400, "the body is empty", "invalid_json")
    try:
        return _present(raw, shape)
    except msgspec.ValidationError as error:
        raise invalid_type(error) from None
    except msgspec.DecodeError as error:
        raise ApiError(400, f"the body is not JSON: {error}", "invalid_json") from None
    except UnicodeDecodeError:
        raise ApiError(400, "the body is not UTF-8", "invalid_json") from None
    except RecursionError:
        raise ApiError(
            400, "the body nests its lists and objects too deep", "invalid_json"
        ) from None


def _present(raw: bytes, shape: type[_T]) -> _T:
    """Parses a body; a null is absent where its field takes none, as clients send their models."""
    try:
        return msgspec.json.decode(raw, type=shape)
    except msgspec.ValidationError:
        fields = msgspec.json.decode(raw)
        if not isinstance(fields, dict) or None not in fields.values():
            raise
        present = {name: value for name, value in fields.items() if value is not None}
        return msgspec.convert(present, shape)


def check_signs(raw: bytes, max_inputs: int) -> None:
    """Refuses a body with too many values, from a count of the signs outside its strings.

    It refuses nothing that check_values() accepts. The decoder refuses invalid JSON.
    """
    n_parts = n_commas = at = 0
    # An object has two texts for a value, its name and itself; the body is no value of one.
    max_parts = 2 * MAX_VALUES + 1 + max_inputs
    while True:
        quote = raw.find(_QUOTE, at)
        between = raw[at:] if quote < 0 else raw[at:quote]
        n_commas += between.count(b",")
        n_parts += between.count(b"[") + between.count(b"{")
        if n_parts > max_parts:
            raise too_many_values()
        if n_commas > _MAX_NUMBERS:
            raise ApiError(
                400, f"the body has more than the {_MAX_NUMBERS} values, numbers too, that this "
                "server takes: send fewer ids", "beyond_bound",
            )  # fmt: skip
        if quote < 0:
            return
        n_parts += 1
        at = _behind_text(raw, quote + 1)


def _behind_text(raw: bytes, at: int) -> int:
    """The end of a JSON string that starts at a position."""
    while True:
        end = raw.find(_QUOTE, at)
        if end < 0:
            return len(raw)
        before = end - 1
        while before >= at and raw[before] == _BACKSLASH:
            before -= 1
        if (end - before) % 2:  # an even number of backslashes: the quote is not part of the text
            return end + 1
        at = end + 1


def too_many_values() -> ApiError:
    """The error for a body with too many values."""
    return ApiError(
        400, f"the body has more than the {MAX_VALUES} values in lists and objects that this "
        "server takes: send fewer messages, parts or tools", "beyond_bound",
    )  # fmt: skip
