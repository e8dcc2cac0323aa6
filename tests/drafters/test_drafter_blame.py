"""The failure of a user's drafter names the user's class and line, also inside wrappers."""

from __future__ import annotations

import functools
import linecache
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyllama_spec import DrafterWrapper
from pyllama_spec.drafters import Draft, Drafter, DraftRequest, LookupFirst
from pyllama_spec.drafters.base import name_of_code
from tests.faces.tools import open_tiny

GREEDY: dict[str, Any] = {"max_tokens": 12, "temperature": 0.0}
WRONG: list[Any] = [None, Draft([1.5]), Draft([4000])]  # type: ignore[list-item]


class Wrong(Drafter):
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def propose_one(self, request: DraftRequest) -> Draft:
        return self.answer  # type: ignore[no-any-return]


class WrongList(Wrong):
    def propose(self, requests: Sequence[DraftRequest]) -> Sequence[Draft]:
        return self.answer  # type: ignore[no-any-return]


class Around(DrafterWrapper):
    """Changes nothing of what it is around."""


class Library(Drafter):
    """Calls a library that raises."""

    def propose_one(self, request: DraftRequest) -> Draft:
        return Draft(np.linalg.inv(np.zeros((2, 2))).tolist())  # the library is called here


class Raises(Drafter):
    def propose_one(self, request: DraftRequest) -> Draft:
        raise ValueError("not today")  # it is raised here


def _decorated(method: Callable[..., Draft]) -> Callable[..., Draft]:
    @functools.wraps(method)
    def around(*given: Any) -> Draft:
        return method(*given)

    return around


class Decorated(Wrong):
    @_decorated
    def propose_one(self, request: DraftRequest) -> Draft:
        return self.answer  # type: ignore[no-any-return]


def _said(drafter: object, **more: Any) -> warnings.WarningMessage:
    with open_tiny(drafter, **more) as llm, pytest.warns(UserWarning) as said:  # type: ignore[arg-type]
        llm("abab", **GREEDY)
    (one,) = said
    return one


def _check(said: warnings.WarningMessage, line: str) -> None:
    assert Path(said.filename).name == Path(__file__).name
    assert line in linecache.getline(said.filename, said.lineno)
    assert f"({Path(__file__).name}, line {said.lineno}). The text continues" in str(said.message)


@pytest.mark.parametrize(
    ("drafter", "line"),
    [
        *((Wrong(answer), "def propose_one(self, request: DraftRequest)") for answer in WRONG),
        (WrongList([]), "def propose(self, requests"),
        (Around(Wrong(None)), "def propose_one("),
        (Around(Around(WrongList(None))), "def propose(self"),
        (LookupFirst(Wrong([3])), "def propose_one("),
        (Library(), "# the library is called here"),
        (Raises(), "# it is raised here"),
        (Around(Raises()), "# it is raised here"),
        (LookupFirst(Raises()), "# it is raised here"),
        (Decorated(None), "@_decorated"),
    ],
    ids=repr,
)
def test_the_users_own_line_is_named(drafter: Drafter, line: str) -> None:
    _check(_said(drafter), line)


def a_function(input_ids: Any) -> Any:
    return 5


class ACallable:
    def __call__(self, input_ids: Any) -> Any:
        return None


@pytest.mark.parametrize(
    ("model", "name", "line"),
    [
        (functools.partial(a_function), "a_function", "def a_function"),
        (ACallable(), "ACallable", "def __call__"),
        (lambda ids: None, "custom", "(lambda ids: None"),
    ],
)
def test_so_is_that_of_llama_cpp_pythons_form(model: Any, name: str, line: str) -> None:
    said = _said(None, draft_model=model)
    _check(said, line)
    assert str(said.message).startswith(f"the drafter {name} is disabled")


def test_where_there_is_no_line_the_function_is_named() -> None:
    """For compiled code, which has no Python lines, the message names the function."""
    said = _said(None, draft_model=len)
    assert "(builtins.len). The text continues" in str(said.message)


def test_a_filter_by_the_users_module_takes_effect() -> None:
    with warnings.catch_warnings(record=True) as said, open_tiny(Wrong(None)) as llm:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", module=__name__.replace(".", r"\."))
        llm("abab", **GREEDY)
    assert not said


# ---- names


def test_code_without_a_word_for_a_name_is_custom() -> None:
    assert [name_of_code(code) for code in (Wrong, a_function, ACallable())] == [
        "Wrong", "a_function", "ACallable",
    ]  # fmt: skip
    none = type("none", (Wrong,), {})
    assert [name_of_code(code) for code in (lambda: None, none)] == ["custom"] * 2
