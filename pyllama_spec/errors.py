"""The exceptions of pyllama_spec: a small tree under one root.

A message says what is wrong, with which value, and what to do about it.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

_PACKAGE = str(Path(__file__).parent) + os.sep

# The longest message: it has to be readable in a log, and a value in it may be a whole file.
MAX_MESSAGE = 2000
# The maximum length of a value in a message.
MAX_SHOWN = 60
# Advice against a large KV cache, which the options of a command cannot all follow.
FEWER_BITS = "type_k and type_v of fewer bits"
# What a terminal may take for a command: all control characters but tabs and newlines. And what
# reorders a line, or ends one in some programs.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
# Modules that call the user's code: a warning must not point at their lines.
_BETWEEN = ("threading", "concurrent", "asyncio", "runpy", "contextlib", "functools")


def clipped(text: str, most: int = MAX_SHOWN) -> str:
    """The beginning of a long text, with its length, for a message.

    Halves of UTF-16 pairs, which no file or terminal takes, are written as escapes.
    """
    text = text if len(text) <= most else f"{text[: most - 3]}... ({len(text):,} characters)"
    return text.encode("utf-8", "backslashreplace").decode()


def shown(value: object) -> str:
    """The beginning of a value's repr, even if repr() raises."""
    try:
        return f"{value!r:.{MAX_SHOWN}}"
    except Exception:  # noqa: BLE001 - of anyone's; of an int with more digits than Python prints
        return f"<{type(value).__name__}>"


def escaped(text: str) -> str:
    """A text for a terminal or a log: control and direction characters as escapes."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


def warn(message: str) -> None:
    """A UserWarning at the line that called into the package, however deep the calls are.

    Of a thread that the package started, and of a command, it is the package's outermost line.
    Control characters become escapes.
    """
    frames: list[FrameType] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    n = max(i for i, one in enumerate(frames) if one.f_code.co_filename.startswith(_PACKAGE))
    place = next((one for one in frames[n + 1 :] if _is_written_by_caller(one)), frames[n])
    module = str(place.f_globals.get("__name__", "<unknown>"))
    registry = place.f_globals.setdefault("__warningregistry__", {})
    warnings.warn_explicit(
        escaped(message), UserWarning, place.f_code.co_filename, place.f_lineno, module, registry
    )


def _is_written_by_caller(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] not in _BETWEEN


class PyllamaSpecError(Exception):
    """The root of every error that pyllama_spec raises on purpose.

    Attributes:
        partial_text: the text that was generated before the error; "" if none.
        partial_tokens: the ids of that text.
        partial_choices: for a list of prompts, the complete choices, None for the others.

    """

    partial_text: str = ""
    partial_tokens: tuple[int, ...] = ()
    partial_choices: Sequence[dict[str, Any] | None] = ()

    def __str__(self) -> str:
        text, most = escaped(super().__str__()), MAX_MESSAGE
        return text if len(text) <= most else f"{text[: most - 250]} ... {text[-200:]}"


class ModelLoadError(PyllamaSpecError, ValueError):
    """A file is missing, unreadable, damaged, or another kind of model than was expected."""


class ArgumentError(PyllamaSpecError, ValueError):
    """A value that the caller gave is out of range or contradicts another one."""


class UnknownKeywordError(ArgumentError, TypeError):
    """A request has an unknown keyword. It is a TypeError too, as with any Python function."""


class SchemaError(ArgumentError):
    """A JSON schema is malformed, or has a condition that no grammar can enforce.

    Attributes:
        keyword: the keyword at fault; "" for the whole schema.
        path: its place, as a JSON pointer after "#".
        is_beyond: whether the keyword is valid and a grammar cannot enforce it.

    """

    def __init__(
        self, message: str, keyword: str = "", path: str = "#", *, is_beyond: bool = False
    ) -> None:
        super().__init__(message)
        self.keyword = keyword
        self.path = path
        self.is_beyond = is_beyond


class UnsupportedError(PyllamaSpecError, RuntimeError):
    """The model, or this build of the engine, cannot do what was asked."""


class ConversionError(PyllamaSpecError):
    """A checkpoint cannot be converted: unsupported, incomplete, damaged or contradictory."""


class ContextFullError(PyllamaSpecError, ValueError, RuntimeError):
    """The context has no room for the tokens: open a larger one, or shorten the prompt."""


def too_long(n_tokens: int, n_ctx: int) -> str:
    """The beginning of the message of a prompt's ContextFullError.

    Programs that moved over look for these words, and take the two numbers out of them.
    """
    return f"Requested tokens ({n_tokens}) exceed context window of {n_ctx}"


def prompt_too_long(n_tokens: int, n_ctx: int, how: str = "") -> ContextFullError:
    """The message for a prompt that leaves no room for a token."""
    why = "is too long" if n_tokens > n_ctx else "fills it"
    return ContextFullError(
        f"{too_long(n_tokens, n_ctx)}: the prompt alone {why}{how}; shorten the prompt or choose a "
        "larger n_ctx"
    )


class ClosedError(PyllamaSpecError):
    """The object was used after close()."""


class BusyError(PyllamaSpecError):
    """The object is in use by another thread, or by a stream that has not been closed."""


class QueueFullError(BusyError):
    """The queue is full: as many requests wait as max_waiting allows. Try again later."""


class CancelledError(PyllamaSpecError):
    """The generation was cancelled from another thread."""


class DeadlineError(CancelledError, TimeoutError):
    """The request was not answered within its timeout."""


# The code of the SystemExit that ends a daemon thread which computes while the process ends. No
# class of its own: threading is silent about SystemExit itself and about no other.
PROCESS_ENDS = "the process ends"


def is_process_end(error: BaseException) -> bool:
    """Whether the engine raised the error because the process exits; no caller sees it."""
    return isinstance(error, SystemExit) and error.code is PROCESS_ENDS


class ForkedError(PyllamaSpecError):
    """The object belongs to the parent of this forked process.

    Open the model in the child, or start the child with multiprocessing's "spawn" method.
    """


class RemoteError(PyllamaSpecError):
    """An RPC server cannot be reached, disconnected, timed out, or sent an invalid answer.

    Its layers and memory are lost. Llama.reopen() connects anew, and fails with the same error
    until the server is back.
    """


class OutOfMemoryError(PyllamaSpecError, MemoryError):
    """The engine could not allocate the requested memory."""


def no_room(why: str, what: str, smaller: Sequence[str], more: str = "") -> OutOfMemoryError:
    """The error for a context that does not fit, in the caller's words for its sizes."""
    remedy = f"a smaller {' or '.join([*filter(None, [', '.join(smaller[:-1])]), smaller[-1]])}"
    sizes = re.search("the memory of past tokens (needs .* GB are free);", why)
    if sizes is None:
        return OutOfMemoryError(f"{why}; {remedy} helps as well")
    return OutOfMemoryError(f"{what} {sizes[1]}; choose {remedy}{more}")


class EngineError(PyllamaSpecError):
    """An error inside the engine; the context that reports it may have to be opened again."""


class ContextOpenError(EngineError, ValueError):
    """The engine cannot open a context with these options. It is a ValueError too."""


def same_kind(error: PyllamaSpecError, message: str) -> PyllamaSpecError:
    """A new error with a message, of an error's class or, where that takes more, its base."""
    kinds = (kind for kind in type(error).__mro__ if issubclass(kind, PyllamaSpecError))
    return next(kind for kind in kinds if not isinstance(kind.__init__, FunctionType))(message)
