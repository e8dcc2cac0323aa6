"""Opening a model: what is refused, and what is opened."""

from __future__ import annotations

from typing import Any

import pytest

from pyllama_spec import (
    ArgumentError,
    CancelledError,
    Llama,
    NoDrafter,
    PromptLookup,
)
from pyllama_spec.llama.open_model import WATCH
from tests.faces.tools import PROMPT, open_tiny
from tests.models import model_path


@pytest.mark.parametrize(
    ("keywords", "named"),
    [
        ({"n_ctx": -1}, "n_ctx"), ({"draft": "promt-lookup"}, "prompt-lookup"),
        ({"draft": "x.gguf", "p_min": 1.5}, "p_min"), ({"draft": "suffix", "lookup": 3}, "lookup"),
        ({"n_parallel": 4, "n_batch": 3}, "n_parallel"), ({"draft": object()}, "draft"),
        ({"type_v": "q8_0", "flash_attn": False}, "type_v"),
        ({"split_mode": "tensor", "flash_attn": False}, "split_mode"),
        ({"chat_format": "chatml", "chat_template": "x"}, "chat_template"),
    ],
)  # fmt: skip
def test_bad_keywords_are_refused_before_a_file_is_opened(
    keywords: dict[str, Any], named: str
) -> None:
    with pytest.raises(ArgumentError, match=named):
        Llama("/no/such/model.gguf", **keywords)


def test_a_drafter_of_the_callers_is_not_closed() -> None:
    class Watched(PromptLookup):
        n_closed = 0

        def close(self) -> None:
            self.n_closed += 1

    drafter = Watched()
    with open_tiny(drafter) as llm:
        llm(PROMPT, max_tokens=2)
    assert drafter.n_closed == 0
    with open_tiny(NoDrafter()):
        pass


@pytest.mark.parametrize("draft", [None, "eagle3"])
def test_a_load_can_be_ended_wherever_it_is(draft: str | None) -> None:
    """Cancelling the load of a target or draft leaves later loads complete."""

    def open_it(n: int) -> int:
        """Loads, and ends it at the n-th call, if it comes so far; gives how many came."""
        calls: list[float] = []

        def watch(fraction: float) -> None:
            calls.append(fraction)
            if len(calls) == n:
                raise CancelledError("enough")

        before = WATCH.set(watch)
        try:
            with open_tiny(None if draft is None else str(model_path(draft))) as llm:
                assert llm(PROMPT, max_tokens=1)["choices"]
        finally:
            WATCH.reset(before)
        return len(calls)

    n_calls = open_it(0)
    assert n_calls >= (2 if draft is None else 4)
    for n in {1, 2, n_calls // 2, n_calls // 2 + 1, n_calls - 1, n_calls}:
        with pytest.raises(CancelledError, match="enough"):
            open_it(n)
    assert open_it(n_calls + 1) == n_calls
