"""Checks arguments: a wrong type is an ArgumentError, like a wrong value."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from pyllama_spec.errors import ArgumentError
from pyllama_spec.options import Option, options_of

INT32_MAX = 2**31 - 1
FLOAT32_MAX = 3.4028234e38


def integer(value: object, name: str) -> int:
    """Reads an int of Python or NumPy."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ArgumentError(name, value, int)
    try:
        return int(value.__index__())
    except Exception:  # noqa: BLE001 - an array has the method, and raises; so may others
        raise ArgumentError(name, value, int) from None


def int32(value: object, name: str) -> int:
    """Reads an int that fits 32 bits."""
    # Nearly always it is one; this is called for every token.
    number = value if type(value) is int else integer(value, name)
    if not -INT32_MAX - 1 <= number <= INT32_MAX:
        raise ArgumentError(name, number, "a whole number of 32 bits")
    return number


def boolean(value: object, name: str) -> bool:
    """Reads a bool of Python or NumPy."""
    kind = type(value)  # importing NumPy for its bool takes long
    if kind is bool or (kind.__module__ == "numpy" and kind.__name__ in ("bool", "bool_")):
        return bool(value)
    raise ArgumentError(name, value, bool)


def count(value: object, name: str, low: int = 0, high: int = INT32_MAX) -> int:
    """Reads an int within a range."""
    number = integer(value, name)
    if not low <= number <= high:
        bounds = f"from {low} to {high}" if high < INT32_MAX or number > high else f"from {low} on"
        raise ArgumentError(name, number, f"a whole number {bounds}")
    return number


def real(value: object, name: str, low: float = -math.inf, high: float = math.inf) -> float:
    """Reads a finite number within a range."""
    number = math.nan
    if isinstance(value, (int, float)) or hasattr(value, "__float__"):
        with contextlib.suppress(Exception):  # 10**400, an array of several, an object of anyone's
            number = float(value)
    if not math.isfinite(number) or not low <= number <= high:
        least = "" if low == -math.inf else f" from {low:g}"
        most = "" if high == math.inf else f" to {high:g}"
        on = " on" if least and not most else ""
        raise ArgumentError(name, value, f"a finite number{least}{most}{on}")
    return number


def instance(value: object, kind: type | tuple[type, ...], name: str, remedy: str = "") -> None:
    """Raises ArgumentError unless the value is an instance of a type."""
    if not isinstance(value, kind):
        raise ArgumentError(name, value, kind, remedy)


def check_options(params: Any) -> None:
    """Checks the options of a frozen dataclass; numbers of NumPy become Python's."""
    for name, one in options_of(type(params)).items():
        object.__setattr__(params, name, checked(one, getattr(params, name)))


def sequence(value: object, name: str) -> Sequence[Any]:
    """A list or tuple as it is; a text is none."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise ArgumentError(name, value, "a list or tuple")
    return value


# Of a list of ids or numbers that a caller names one by one.
MAX_LISTED = 1 << 16


def listed(values: Iterable[Any], name: str) -> tuple[Any, ...]:
    """The values of an iterable, read no further than the limit: range(10**9) takes no memory."""
    found = tuple(islice(values, MAX_LISTED + 1))
    if len(found) > MAX_LISTED:
        raise ArgumentError(name, values, f"at most {MAX_LISTED} entries")
    return found


def text(value: object, name: str) -> str:
    """Reads a str without NUL, at which the engine would cut it."""
    if not isinstance(value, str):
        raise ArgumentError(name, value, str)
    if "\0" in value:
        problem = f"holds a NUL character at index {value.index(chr(0))}"
        raise ArgumentError(name, problem=problem, remedy="remove it")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        problem = f"holds half of a character, {value[error.start]!a}, at index {error.start}"
        raise ArgumentError(name, problem=problem, remedy="remove it") from None
    return value


def one_of(value: object, known: Iterable[str | None], name: str) -> None:
    """Raises ArgumentError unless the value is one of these names."""
    names = tuple(known)
    if not (value is None or isinstance(value, str)) or value not in names:
        words = [one for one in names if one is not None]
        raise ArgumentError(name, value, f"one of {', '.join(words)}")


def meant(word: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown word: the similar words, if any."""
    import difflib  # for mistakes alone

    close = difflib.get_close_matches(word, list(known), n=3, cutoff=0.7)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def shares_of(split: Iterable[float] | None) -> list[float]:
    """Reads a tensor_split: numbers from 0 on, in the engine's format."""
    if split is None:
        return []
    if isinstance(split, (str, bytes)) or not isinstance(split, Iterable):
        raise ArgumentError("tensor_split", split, "a list of numbers")
    shares = listed(split, "tensor_split")
    return [min(real(x, "tensor_split", 0.0), FLOAT32_MAX) for x in shares]


_LISTS: Mapping[str, Callable[[object, str], Any]] = {
    "tuple[str, ...]": text, "tuple[int, ...]": int32,
}  # fmt: skip


def checked(option: Option, value: object) -> Any:
    """The value of an option, checked by its own function, or its type, bounds and choices."""
    if option.kind == "int" and isinstance(value, float) and value.is_integer():
        value = int(value)  # as JSON of other programs has it
    if option.check is not None:
        return option.check(value, option.name)
    if value is None and option.is_optional:
        return None
    if option.kind == "bool":
        return boolean(value, option.name)
    if option.kind in _LISTS:
        read = _LISTS[option.kind]
        return tuple(read(each, option.name) for each in sequence(value, option.name))
    if option.choices:
        one_of(value, option.choices, option.name)
    elif option.kind == "str":
        return text(value, option.name)
    if option.kind == "int":
        if option.low is None:
            return integer(value, option.name)
        high = INT32_MAX if option.high is None else int(option.high)
        return count(value, option.name, int(option.low), high)
    if option.low is None:
        return value
    return real(value, option.name, option.low, math.inf if option.high is None else option.high)
