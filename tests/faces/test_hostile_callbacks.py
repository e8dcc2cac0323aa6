"""A user's functions and drafters that misbehave."""

from __future__ import annotations

import os
import warnings
from typing import Any

import numpy as np
import pytest

from pyllama_spec import Draft, Drafter, DraftRequest, Llama
from pyllama_spec.engine import Context
from pyllama_spec.errors import ArgumentError, ClosedError
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


class _Meddler(Drafter):
    """Clears the memory of its target, and drafts."""

    name = "meddler"
    max_draft = 2

    def attach(self, target: Context) -> None:
        self.target = target

    def propose_one(self, request: DraftRequest) -> Draft:
        self.target.memory.clear()
        return Draft([1] * request.n_requested)


def test_a_drafter_may_only_read_its_target() -> None:
    with _llama() as llm:
        plain = llm.create_completion(_PROMPT, max_tokens=12, temperature=0)
    with _llama(draft=_Meddler()) as llm:
        found = llm.create_completion(_PROMPT, max_tokens=12, temperature=0)
        assert llm.create_completion(_PROMPT, max_tokens=12, temperature=0)
    assert found["choices"][0]["text"] == plain["choices"][0]["text"]
    assert "must not change the target" in found["speculation"]["reason_off"]


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
        with pytest.raises(ArgumentError, match="a callback of the request must not") as caught:
            llm.create_completion(_PROMPT, max_tokens=12, temperature=0, **options)
        assert len(caught.value.partial_tokens) >= 3
        assert (
            llm.create_completion(_PROMPT, max_tokens=12, temperature=0)["choices"]
            == plain["choices"]
        )


class _MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class _Failing(Drafter):
    """Raises what cannot be printed."""

    name = "failing"
    max_draft = 2

    def propose_one(self, request: DraftRequest) -> Draft:
        raise _MuteError


@pytest.mark.parametrize("n_parallel", [1, 2])
def test_a_drafters_error_without_a_text(n_parallel: int) -> None:
    with _llama() as llm:
        plain = llm.create_completion(_PROMPT, max_tokens=12, temperature=0)
    with _llama(draft=_Failing(), n_parallel=n_parallel) as llm:
        for _ in range(2):
            found = llm.create_completion(_PROMPT, max_tokens=12, temperature=0)
            assert found["choices"][0]["text"] == plain["choices"][0]["text"]
    reason = "the drafter failed in propose(): _MuteError: (its text raises RuntimeError)"
    assert found["speculation"]["reason_off"] == reason


@pytest.mark.parametrize("part", ["model", "context"])
def test_what_was_generated_outlives_the_model(part: str) -> None:
    llm = _llama()
    stream = llm.create_completion(_PROMPT, max_tokens=12, temperature=0, stream=True)
    texts = [next(stream)["choices"][0]["text"] for _ in range(3)]
    getattr(llm, part).close()
    with pytest.raises(ClosedError) as caught:
        list(stream)
    llm.close()
    assert len(caught.value.partial_tokens) >= 3
    assert caught.value.partial_text.startswith("".join(texts))


@pytest.mark.parametrize("value", [1.5, np.float32(2.5), np.array([2]), "a", None, True])
def test_a_place_to_go_back_to_is_a_number(value: Any) -> None:
    with _llama() as llm:
        llm.eval(_PROMPT)
        with pytest.raises(ArgumentError, match="n_tokens"):
            llm.n_tokens = value
        assert llm.n_tokens == len(_PROMPT)


@pytest.mark.parametrize("value", [[1], "abc", 5, [("a", 1.0, 2)]])
def test_adapters_are_pairs(value: Any) -> None:
    with _llama() as llm, pytest.raises(ArgumentError, match="not pairs"):
        llm.set_adapters(value)


def test_a_bias_of_a_part_of_an_id() -> None:
    with _llama() as llm:
        with pytest.raises(ArgumentError, match=r"65\.5"):
            llm.create_completion(_PROMPT, max_tokens=2, logit_bias={65.5: 1.0})
        llm.create_completion(_PROMPT, max_tokens=2, logit_bias={65.0: 1.0})
