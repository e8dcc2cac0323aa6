"""Checks of arguments at the door: a wrong type is an ArgumentError, like a wrong value."""

from __future__ import annotations

import math

from pyllama_spec.errors import ArgumentError

INT32_MAX = 2**31 - 1


def integer(value: object, name: str) -> int:
    """An int of Python or NumPy.

    Raises:
        ArgumentError: it is something else.

    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ArgumentError(f"{name}={value!r:.60} is a {type(value).__name__}, not an int")
    return int(value.__index__())


def int32(value: object, name: str) -> int:
    """An int that fits 32 bits.

    Raises:
        ArgumentError: it is something else.

    """
    # Nearly always it is one; this is called for every token.
    number = value if type(value) is int else integer(value, name)
    if not -INT32_MAX - 1 <= number <= INT32_MAX:
        raise ArgumentError(f"{name}={number} does not fit 32 bits")
    return number


def count(value: object, name: str, low: int = 0, high: int = INT32_MAX) -> int:
    """An int within a range.

    Raises:
        ArgumentError: it is something else.

    """
    number = integer(value, name)
    if not low <= number <= high:
        raise ArgumentError(f"{name}={number} is outside {low} .. {high}")
    return number


def real(value: object, name: str, low: float = -math.inf) -> float:
    """A finite number that is at least `low`.

    Raises:
        ArgumentError: it is something else.

    """
    is_number = isinstance(value, (int, float)) or hasattr(value, "__float__")
    number = float(value) if is_number and not isinstance(value, str) else math.nan  # type: ignore[arg-type]
    if not math.isfinite(number) or number < low:
        raise ArgumentError(f"{name}={value!r} is not a finite number of at least {low}")
    return number


def instance(value: object, kind: type | tuple[type, ...], name: str, hint: str = "") -> None:
    """Raises ArgumentError unless the value is of a kind; `hint` says what to give instead."""
    if not isinstance(value, kind):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        wanted = " or ".join(k.__name__ for k in kinds)
        raise ArgumentError(f"{name} must be a {wanted}, not {type(value).__name__}{hint}")


def text(value: object, name: str) -> str:
    """A str without NUL, at which the engine would end it.

    Raises:
        ArgumentError: it is something else.

    """
    if not isinstance(value, str):
        raise ArgumentError(f"{name} must be a str, not {type(value).__name__} {value!r}")
    if "\0" in value:
        raise ArgumentError(f"{name} holds a NUL character at index {value.index(chr(0))}")
    return value
