"""The exceptions of pyllama_spec: a small tree under one root.

An error is data: which argument, its value, what was expected, and the remedy. A Face puts it into
words: Python's in str(), the options of a command, the fields of a request.
"""

from __future__ import annotations

import copy
import os
import re
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from typing_extensions import Self

_PACKAGE = str(Path(__file__).parent) + os.sep

# The longest message: it has to be readable in a log, and a value in it may be a whole file.
MAX_MESSAGE = 2000
# The maximum length of a value in a message.
MAX_SHOWN = 60
# The remedy for what passes by itself; a server says in how many seconds.
LATER = "try again later"
# What a terminal may take for a command: all control characters but tabs and newlines. And what
# reorders a line, or ends one in some programs.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
# In the texts of an error, an option or an option with a value stands in backticks.
_OPTION = re.compile(r"`([a-z][a-z0-9_]*)(?:=([^`]*))?`")
PYTHON_KINDS: Mapping[type, str] = {type(None): "None", bool: "True or False", int: "an int"}
# Modules that call the user's code: a warning must not point at their lines.
_BETWEEN = ("threading", "concurrent", "asyncio", "runpy", "contextlib", "functools")
# The code of the SystemExit that ends a daemon thread which computes while the process ends. No
# class of its own: threading is silent about SystemExit itself and about no other.
PROCESS_ENDS = "the process ends"


def clipped(text: str, most: int = MAX_SHOWN) -> str:
    """The beginning of a long text, with its length, for a message.

    Halves of UTF-16 pairs, which no file or terminal takes, are written as escapes.
    """
    text = text if len(text) <= most else f"{text[: most - 3]}... ({len(text):,} characters)"
    return text.encode("utf-8", "backslashreplace").decode()


def limited(message: str) -> str:
    """A message of at most MAX_MESSAGE characters: its beginning and its end."""
    if len(message) <= MAX_MESSAGE:
        return message
    return f"{message[: MAX_MESSAGE - 250]} ... {message[-200:]}"


def shown(value: object) -> str:
    """The beginning of a value's repr, even if repr() raises; the whole name of a file."""
    if isinstance(value, Path):
        return repr(str(value))
    try:
        return f"{value!r:.{MAX_SHOWN}}"
    except Exception:  # noqa: BLE001 - of anyone's; of an int with more digits than Python prints
        return f"<{type(value).__name__}>"


def escaped(text: str) -> str:
    """A text for a terminal or a log: control and direction characters as escapes."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


class _Omitted(Enum):
    OMITTED = "omitted"


# The value of an argument that a message leaves out.
OMITTED: Final = _Omitted.OMITTED
# What an argument has to be: words that fit every face, or types, which each face names.
Expected = str | type | tuple[type, ...]


@dataclass(frozen=True)
class Face:
    """How the users of a face call options, values and types.

    Attributes:
        names: the face's names for options, by Python's; the others stay.
        pair: an option with its value.
        words: the face's words for Python's True, False and None in a text.
        value: a value in words.
        kinds: types in words.
        is_operator: whether the reader can change how the model was opened.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    pair: str = "{}={}"
    words: Mapping[str, str] = field(default_factory=dict)
    value: Callable[[object], str] = shown
    kinds: Mapping[type, str] = field(default_factory=lambda: PYTHON_KINDS)
    is_operator: bool = True

    def name(self, param: str) -> str:
        """The face's name for an option or for a path such as "messages[2].content"."""
        if param in self.names:
            return self.names[param]
        top = re.split(r"[.\[]", param, maxsplit=1)[0]
        return self.names.get(top, top) + param[len(top) :]

    def text(self, marked: str) -> str:
        """A text in which options stand in backticks, in the face's words."""
        return _OPTION.sub(self._option, marked)

    def _option(self, found: re.Match[str]) -> str:
        name = self.name(found[1])
        value = found[2]
        return name if value is None else self.pair.format(name, self.words.get(value, value))

    def expected(self, expected: Expected) -> str:
        """What was expected, in the face's words."""
        if isinstance(expected, str):
            return self.text(expected)
        kinds = expected if isinstance(expected, tuple) else (expected,)
        words = (self.kinds.get(kind, f"a {kind.__name__}") for kind in kinds)
        return " or ".join(dict.fromkeys(words))


PYTHON = Face()


class Note(UserWarning):
    """A warning whose text may have options in backticks; str() gives Python's words."""

    def __init__(self, marked: str) -> None:
        super().__init__(escaped(PYTHON.text(marked)))
        self.marked = marked


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
        Note(message), Note, place.f_code.co_filename, place.f_lineno, module, registry
    )


def _is_written_by_caller(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] not in _BETWEEN


class PyllamaSpecError(Exception):
    """The root of every error that pyllama_spec raises on purpose.

    `problem`, `expected`, `remedy` and `setup` may name options in backticks: "a larger `n_ctx`".
    str() is the message in Python's words, and rendered() in those of another face.

    Attributes:
        param: the argument at fault: its name, or a path such as "messages[2].content"; "" if no
            single one is.
        value: its value; OMITTED where a message needs none.
        problem: what is wrong.
        expected: what would be right, in words or as types.
        remedy: what the caller can do.
        setup: what whoever opened the model can do; clients of a server do not see it.
        partial_text: the text that was generated before the error; "" if none.
        partial_tokens: the ids of that text.
    """

    partial_text: str = ""
    partial_tokens: tuple[int, ...] = ()
    # Whether a message begins with the param; elsewhere the problem is a whole sentence.
    _is_named: bool = True

    def __init__(
        self,
        problem: str = "",
        *,
        param: str = "",
        value: object = OMITTED,
        expected: Expected = "",
        remedy: str = "",
        setup: str = "",
    ) -> None:
        self.param, self.value, self.expected = param, value, expected
        self.problem, self.remedy, self.setup = problem, remedy, setup
        super().__init__(self.rendered())  # what copies and pickles are made of

    def rendered(self, face: Face = PYTHON) -> str:
        """The message in the words of a face, of MAX_MESSAGE characters at most."""
        subject = face.name(self.param) if self._is_named else ""
        if subject and self.value is not OMITTED:
            subject = face.pair.format(subject, face.value(self.value))
        said = " ".join(filter(None, (subject, face.text(self.problem))))
        if self.expected:
            said += f"{'; ' if self.problem else ': '}expected {face.expected(self.expected)}"
        remedies = [self.remedy, self.setup] if face.is_operator else [self.remedy]
        remedy = face.text(", or ".join(filter(None, remedies)))
        return limited(escaped(f"{said}; {remedy}" if remedy else said))

    def copied(self, **changes: Any) -> Self:
        """A new error of the same class, without traceback, with other attributes."""
        new = copy.copy(self)
        vars(new).update(changes)
        new.args = (new.rendered(),)
        return new

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self.args, {**vars(self)})

    def about_first(self) -> Self:
        """The same error, about the first option that its problem names."""
        found = _OPTION.search(self.problem)
        if found and not self.param:
            self.param, self._is_named = found[1], False
        return self

    @property
    def option(self) -> str:
        """The option that `setup` advises to change; "" for none."""
        found = _OPTION.search(self.setup)
        return found[1] if found else ""


def _restored(
    kind: type[PyllamaSpecError], args: tuple[Any, ...], attributes: dict[str, Any]
) -> PyllamaSpecError:
    """A copy of an error, whatever its class's constructor takes."""
    make: Callable[..., Any] = OSError.__new__ if issubclass(kind, OSError) else Exception.__new__
    error: PyllamaSpecError = make(kind)
    error.args = args
    vars(error).update(attributes)
    return error


class ModelLoadError(PyllamaSpecError, ValueError):
    """A file is missing, unreadable, damaged, or another kind of model than was expected."""


class ArgumentError(PyllamaSpecError, ValueError):
    """A value that the caller gave is out of range or contradicts another one.

    ArgumentError("n_ctx", 0, "a whole number of at least 1") is "n_ctx=0: expected a whole number
    of at least 1"; ArgumentError("draft", path, problem="is an address", remedy="give a path") is
    "draft='...' is an address; give a path". Without a param, the problem is the whole sentence.
    """

    def __init__(
        self,
        param: str = "",
        value: object = OMITTED,
        expected: Expected = "",
        remedy: str = "",
        *,
        problem: str = "",
        setup: str = "",
    ) -> None:
        super().__init__(
            problem, param=param, value=value, expected=expected, remedy=remedy, setup=setup
        )


def both_given(param: str, other: str) -> ArgumentError:
    """The error for two arguments of which a call takes one."""
    return ArgumentError(
        param, problem=f"and `{other}` exclude each other", remedy="give one of them"
    )


class UnknownKeywordError(ArgumentError, TypeError):
    """A request has an unknown keyword. It is a TypeError too, as with any Python function."""


class SchemaError(ArgumentError):
    """A JSON schema is malformed, or has a condition that no grammar can enforce.

    `param` is the argument that holds the schema, where it is known.

    Attributes:
        keyword: the keyword at fault; "" for the whole schema.
        path: its place, as a JSON pointer after "#".
        is_beyond: whether the keyword is valid and a grammar cannot enforce it.
    """

    _is_named = False

    def __init__(
        self,
        problem: str,
        keyword: str = "",
        path: str = "#",
        *,
        remedy: str = "",
        is_beyond: bool = False,
    ) -> None:
        super().__init__(problem=problem, remedy=remedy)
        self.keyword = keyword
        self.path = path
        self.is_beyond = is_beyond


class UnsupportedError(PyllamaSpecError, RuntimeError):
    """The model, or this build of the engine, cannot do what was asked."""


class ConversionError(PyllamaSpecError):
    """A checkpoint cannot be converted: unsupported, incomplete, damaged or contradictory."""


class ContextFullError(PyllamaSpecError, ValueError, RuntimeError):
    """The context has no room for the tokens: open a larger one, or shorten the prompt.

    Attributes:
        n_tokens: the tokens that were asked for; 0 where nobody counted them.
        n_ctx: the tokens that a context holds.
    """

    _is_named = False

    def __init__(
        self,
        problem: str = "",
        *,
        n_tokens: int = 0,
        n_ctx: int = 0,
        param: str = "prompt",
        remedy: str = "",
        setup: str = "",
    ) -> None:
        if n_tokens:
            # Programs that moved over look for these words, and take the two numbers out of them.
            problem = f"Requested tokens ({n_tokens}) exceed context window of {n_ctx}{problem}"
        super().__init__(problem, param=param, remedy=remedy, setup=setup)
        self.n_tokens, self.n_ctx = n_tokens, n_ctx

    @classmethod
    def of_prompt(cls, n_tokens: int, n_ctx: int, how: str = "") -> Self:
        """The error for a prompt that leaves no room for a token."""
        why = "is too long" if n_tokens > n_ctx else "fills it"
        return cls(
            f": the prompt alone {why}{how}", n_tokens=n_tokens, n_ctx=n_ctx,
            remedy="shorten the prompt", setup="choose a larger `n_ctx`",
        )  # fmt: skip


class ClosedError(PyllamaSpecError):
    """The object was used after close()."""


class BusyError(PyllamaSpecError):
    """The object is in use by another thread, or by a stream that has not been closed."""


class QueueFullError(BusyError):
    """The queue is full: as many requests wait as max_waiting allows. Try again later.

    Attributes:
        max_waiting: the limit.
    """

    def __init__(self, max_waiting: int, who: str) -> None:
        super().__init__(
            f"the queue is full: {who}", remedy=LATER,
            setup=f"open the model with a `max_waiting` above {max_waiting}",
        )  # fmt: skip
        self.max_waiting = max_waiting


class CancelledError(PyllamaSpecError):
    """The generation was cancelled from another thread."""


class DeadlineError(CancelledError, TimeoutError):
    """The request was not answered within its timeout."""


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

    def of(self, what: str, smaller: Sequence[str], more: str = "") -> Self:
        """The error of a context that does not fit, with the options that make it smaller."""
        names = [f"`{name}`" for name in smaller]
        words = " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))
        return self.copied(
            problem=f"{what}: {self.problem}", remedy="", setup=f"choose a smaller {words}{more}"
        )


class EngineError(PyllamaSpecError):
    """An error inside the engine; the context that reports it may have to be opened again."""


class ContextOpenError(EngineError, ValueError):
    """The engine cannot open a context with these options. It is a ValueError too."""
