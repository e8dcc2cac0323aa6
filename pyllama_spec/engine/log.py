"""The engine's log on stderr."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from pyllama_spec.engine.binding import lib
from pyllama_spec.errors import ArgumentError

LogLevel = Literal["debug", "info", "warning", "error", "none"]

# ggml's numbers; the engine logs nothing above "error".
_LEVELS: dict[str, int] = {"debug": 1, "info": 2, "warning": 3, "error": 4, "none": 5}


def set_log_level(level: LogLevel) -> None:
    """Sets the lowest level that the engine prints; "none", the default, prints nothing.

    The setting is the process's: every model and context shares it. Errors reach Python as
    exceptions at any level.

    Raises:
        ArgumentError: the level is unknown.
    """
    lib.llama_spec_set_log_level(_number(level))


@contextmanager
def thread_log_level(level: LogLevel) -> Iterator[None]:
    """Sets the level for this thread's engine calls within the block.

    The process's level stays as it is for all other threads, the engine's own workers included.
    """
    before: int = lib.llama_spec_set_thread_log_level(_number(level))
    try:
        yield
    finally:
        lib.llama_spec_set_thread_log_level(before)


def _number(level: str) -> int:
    try:
        return _LEVELS[level]
    except (KeyError, TypeError):
        raise ArgumentError("level", level, f"one of {', '.join(_LEVELS)}") from None
