"""Finds the code that raised a drafter's error: the drafter's, or a wrapped one's.

What a drafter raises has a traceback. What it returns is checked in this package, so that the
traceback of a wrong value ends here and tells its author nothing: the place is then the method that
returned it.
"""

from __future__ import annotations

import inspect
import traceback
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

from pyllama_spec.drafters.base import Drafter

_PACKAGE = Path(__file__).parents[1]
# The most drafters inside one another that are told apart: one may say that it is inside itself.
_MOST_INNER = 8
# The two forms of what a drafter is called for: for one sequence, and for several.
_ONE = {"propose": "propose_one", "commit": "commit_one"}


class Blame(NamedTuple):
    """The drafter that an error is attributed to.

    Attributes:
        author: the name of the class or function, with its module.
        module: the name of that module.
        place: the file and the line, from 1; None if Python knows neither, as for compiled code.

    """

    author: str
    module: str
    place: tuple[str, int] | None


def blame(drafter: Drafter, what: str, error: Exception) -> Blame:
    """Attributes an error to the drafter, or to the wrapped drafter or callable inside.

    Args:
        drafter: the drafter that failed.
        what: the method that was called: "propose", "commit", "resume_at" and others.
        error: the error, with its traceback if it was raised.

    """
    frames = [
        (frame.filename, frame.lineno or 1)
        for frame in traceback.extract_tb(error.__traceback__)
        if not _is_ours(frame.filename)
    ]
    chain = chain_of(drafter)
    one, code = next(
        ((one, code) for one in chain for code in _codes(one, what)), (chain[-1], None)
    )
    named: Any = one if hasattr(one, "__qualname__") else type(one)
    module = str(named.__module__)
    author = f"{module}.{named.__qualname__}"
    if code is None:
        return Blame(author, module, frames[-1] if frames else None)
    # The innermost line of the author's own file: an error of a library has its cause there.
    own = [frame for frame in frames if frame[0] == code.co_filename]
    place = (own or frames or [(code.co_filename, code.co_firstlineno)])[-1]
    return Blame(author, module, place)


def chain_of(drafter: Drafter) -> list[object]:
    """The drafter and those it wraps, from the outside to the inside, at most _MOST_INNER."""
    chain: list[object] = [drafter]
    while isinstance(chain[-1], Drafter) and len(chain) < _MOST_INNER:
        try:
            one = chain[-1].passes_on_to()
        except Exception:  # noqa: BLE001 - a user's method: what it hides is not told
            break
        while isinstance(one, partial):
            one = one.func
        if one is None:
            break
        chain.append(one)
    return chain


def _codes(one: object, what: str) -> list[CodeType]:
    """The code objects of the methods that may have been called, in Python outside this package."""
    methods: list[object]
    if isinstance(one, Drafter):
        methods = [getattr(one, name, None) for name in (what, _ONE.get(what, what))]
    else:
        methods = [one, inspect.getattr_static(type(one), "__call__", None)]
    codes = [
        getattr(inspect.unwrap(method), "__code__", None) for method in methods if callable(method)
    ]
    return [c for c in codes if isinstance(c, CodeType) and not _is_ours(c.co_filename)]


def _is_ours(file: str) -> bool:
    return _PACKAGE in Path(file).parents
