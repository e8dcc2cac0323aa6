"""A user's functions and drafters that misbehave."""

from __future__ import annotations

import os
import warnings
from typing import Any

import pytest

from pyllama_spec import Llama
from pyllama_spec.errors import ArgumentError
from tests.robust.tools import tiny

_PROMPT = [65, 66, 67, 68]


def _llama(**options: Any) -> Llama:
    return Llama(tiny(), n_ctx=64, **{"n_threads": 1, **options})


@pytest.mark.parametrize("kind", [StopIteration, GeneratorExit])
@pytest.mark.parametrize("where", ["logits_processor", "stopping_criteria"])
def test_what_would_end_a_generator_is_an_error(kind: type[BaseException], where: str) -> None:
    calls: list[int] = []

    def act(ids: Any, logits: Any) -> Any:
        calls.append(len(ids))
        if len(calls) > 3:
            raise kind
        return logits if where == "logits_processor" else False

    options: dict[str, Any] = {where: act}
    with _llama() as llm, pytest.raises(ArgumentError, match=kind.__name__) as caught:
        llm.create_completion(_PROMPT, max_tokens=12, temperature=0, **options)
    assert caught.value.partial_tokens


def test_threads_beyond_the_machine_are_not_made() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        llm = _llama(n_threads=512)
    assert llm.context.n_threads <= len(os.sched_getaffinity(0))
    assert any("n_threads=512" in str(one.message) for one in seen)
    llm.create_completion(_PROMPT, max_tokens=2)
    llm.close()


@pytest.mark.parametrize("where", ["logits_processor", "stopping_criteria"])
@pytest.mark.parametrize("n_parallel", [1, 2])
def test_a_callback_may_only_read_the_target(where: str, n_parallel: int) -> None:
    with _llama(n_parallel=n_parallel) as llm:
        plain = llm.create_completion(_PROMPT, max_tokens=12, temperature=0)

        def clear(ids: Any, logits: Any) -> Any:
            if len(ids) == len(_PROMPT) + 3:
                llm.context.memory.clear()
            return logits if where == "logits_processor" else False

        options: dict[str, Any] = {where: clear}
        with pytest.raises(ArgumentError) as caught:
            llm.create_completion(_PROMPT, max_tokens=12, temperature=0, **options)
        assert len(caught.value.partial_tokens) >= 3
        assert (
            llm.create_completion(_PROMPT, max_tokens=12, temperature=0)["choices"]
            == plain["choices"]
        )
