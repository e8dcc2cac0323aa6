"""Names of llama-cpp-python missing in pyllama_spec: the error says where to find them."""

from __future__ import annotations

import pytest

import pyllama_spec
from pyllama_spec import llama_cpp

THEIRS = sorted(set(llama_cpp.__all__) - set(pyllama_spec.__all__) - {"install", "uninstall"})


@pytest.mark.parametrize("name", [*THEIRS, "CreateCompletionResponse", "llama_chat_format"])
def test_the_error_says_where_a_name_is(name: str) -> None:
    with pytest.raises(AttributeError, match=r"pyllama_spec\.llama_cpp"):
        getattr(pyllama_spec, name)
    assert getattr(pyllama_spec, name, None) is None
    exec(f"from pyllama_spec.llama_cpp import {name}")


def test_a_name_that_nobody_has_is_an_error_without_a_hint() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'x'$"):
        getattr(pyllama_spec, "x")  # noqa: B009 - type checkers know that it is absent
