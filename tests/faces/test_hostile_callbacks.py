"""Functions and drafters of the user's that do what they should not."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from pyllama_spec import Draft, Drafter, DraftRequest, Llama
from pyllama_spec.engine import Context
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


class _Meddler(Drafter):
    """Clears the memory of its target, and drafts."""

    name = "meddler"
    max_draft = 2

    def attach(self, target: Context) -> None:
        self.target = target

    def propose_one(self, request: DraftRequest) -> Draft:
        self.target.memory.clear()
        return Draft([1] * request.n)


def test_a_drafter_may_only_read_its_target() -> None:
    with _llama() as llm:
        plain = llm.create_completion(_PROMPT, max_tokens=12, temperature=0)
    with _llama(draft=_Meddler()) as llm:
        found = llm.create_completion(_PROMPT, max_tokens=12, temperature=0)
        assert llm.create_completion(_PROMPT, max_tokens=12, temperature=0)
    assert found["choices"][0]["text"] == plain["choices"][0]["text"]
    assert "may not change its target" in found["speculation"]["reason_off"]


def test_threads_beyond_the_machine_are_not_made() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        llm = _llama(n_threads=512)
    assert any("n_threads=512" in str(one.message) for one in seen)
    llm.create_completion(_PROMPT, max_tokens=2)
    llm.close()
