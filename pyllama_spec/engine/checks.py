"""Checks arguments: a wrong type is an ArgumentError, like a wrong value."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable
from itertools import islice
from typing import Any

from pyllama_spec.errors import ArgumentError, shown
from pyllama_spec.options import Option

INT32_MAX = 2**31 - 1
FLOAT32_MAX = 3.4028234e38


def integer(value: object, name: str) -> int:
    """Reads an int of Python or NumPy."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ArgumentError(f"{name}={shown(value)} is a {type(value).__name__}, not an int")
    try:
        return int(value.__index__())
    except Exception as error:  # noqa: BLE001 - an array has the method, and raises; so may others
        raise ArgumentError(f"{name}={shown(value)} is not an int: {error}") from None


def int32(value: object, name: str) -> int:
    """Reads an int that fits 32 bits."""
    # Nearly always it is one; this is called for every token.
    number = value if type(value) is int else integer(value, name)
    if not -INT32_MAX - 1 <= number <= INT32_MAX:
        raise ArgumentError(f"{name}={shown(number)} does not fit 32 bits")
    return number


def flag(value: object, name: str) -> bool:
    """Reads True or False."""
    if value is not True and value is not False:
        raise ArgumentError(f"{name}={shown(value)} is not True or False")
    return value


def boolean(value: object, name: str) -> bool:
    """Reads a bool of Python or NumPy."""
    # NumPy's has the name "bool" too, so the message needs more than the type's name.
    if isinstance(value, bool) or (type(value).__module__ == "numpy" and _is_numpy_bool(value)):
        return bool(value)
    raise ArgumentError(f"{name}={shown(value)} is not True or False")


def _is_numpy_bool(value: object) -> bool:
    return type(value).__name__ in ("bool", "bool_")


def count(value: object, name: str, low: int = 0, high: int = INT32_MAX) -> int:
    """Reads an int within a range."""
    number = integer(value, name)
    if not low <= number <= high:
        raise ArgumentError(f"{name}={shown(number)} is outside {low} .. {high}")
    return number


def real(value: object, name: str, low: float = -math.inf) -> float:
    """Reads a finite number of at least `low`."""
    number = math.nan
    if isinstance(value, (int, float)) or hasattr(value, "__float__"):
        with contextlib.suppress(Exception):  # 10**400, an array of several, an object of anyone's
            number = float(value)
    if not math.isfinite(number) or number < low:
        least = "" if low == -math.inf else f" of at least {low}"
        raise ArgumentError(f"{name}={shown(value)} is not a finite number{least}")
    return number


def instance(value: object, kind: type | tuple[type, ...], name: str, hint: str = "") -> None:
    """Raises ArgumentError unless the value is an instance of a type; `hint` is the remedy."""
    if not isinstance(value, kind):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        wanted = " or ".join("None" if k is type(None) else k.__name__ for k in kinds)
        given = type(value)
        # A class of the same name from elsewhere, as NumPy's bool.
        is_alike = given.__name__ in {k.__name__ for k in kinds}
        named = f"{given.__module__}.{given.__qualname__}" if is_alike else given.__name__
        raise ArgumentError(f"{name} must be a {wanted}, not {named}{hint}")


# Of a list of ids or numbers that a caller names one by one.
MAX_LISTED = 1 << 16


def listed(values: Iterable[Any], name: str, most: int = MAX_LISTED) -> tuple[Any, ...]:
    """The values of an iterable, read no further than the limit: range(10**9) takes no memory."""
    found = tuple(islice(values, most + 1))
    if len(found) > most:
        raise ArgumentError(f"{name}={shown(values)} has more than {most} entries")
    return found


def text(value: object, name: str) -> str:
    """Reads a str without NUL, at which the engine would cut it."""
    if not isinstance(value, str):
        raise ArgumentError(f"{name} must be a str, not {type(value).__name__} {shown(value)}")
    if "\0" in value:
        at = value.index("\0")
        raise ArgumentError(f"{name} holds a NUL character at index {at}; remove it")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ArgumentError(
            f"{name} holds half of a character, {value[error.start]!a}, at index {error.start}; "
            "remove it"
        ) from None
    return value


def one_of(value: object, known: Iterable[str | None], name: str) -> None:
    """Raises ArgumentError unless the value is one of these names."""
    names = tuple(known)
    if not (value is None or isinstance(value, str)) or value not in names:
        raise ArgumentError(f"{name}={shown(value)} is not one of {', '.join(map(str, names))}")


def meant(word: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown word: the similar words, if any."""
    import difflib  # for mistakes alone

    close = difflib.get_close_matches(word, list(known), n=3)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def shares_of(split: Iterable[float] | None) -> list[float]:
    """Reads a tensor_split: numbers from 0 on, in the engine's format."""
    if split is None:
        return []
    if isinstance(split, (str, bytes)) or not isinstance(split, Iterable):
        raise ArgumentError(f"tensor_split={shown(split)} is not a list of numbers")
    shares = listed(split, "tensor_split")
    return [min(real(x, "tensor_split", 0.0), FLOAT32_MAX) for x in shares]


def checked(option: Option, value: object) -> Any:
    """The value of an option, checked by its type, its bounds and its choices."""
    if value is None and option.is_optional:
        return None
    if option.kind == "bool":
        return boolean(value, option.name)
    if option.choices:
        one_of(value, option.choices, option.name)
    if option.kind == "int":
        if isinstance(value, float) and value.is_integer():  # as JSON of other programs has it
            value = int(value)
        if option.low is not None:
            high = INT32_MAX if option.high is None else int(option.high)
            return count(value, option.name, int(option.low), high)
    if option.kind == "float" and option.low is not None:
        value = real(value, option.name, option.low)
        if option.high is not None and value > option.high:
            raise ArgumentError(f"{option.name}={value!r} is outside {option.low} .. {option.high}")
    return value
