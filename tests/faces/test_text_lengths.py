"""The controller learns the length of each text once, and of the whole text."""

from __future__ import annotations

from typing import Any

from pyllama_spec.speculative import ProfitController
from tests.faces.tools import PROMPT, open_tiny

ENDLESS: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}


def test_a_text_that_was_put_aside_is_one_text() -> None:
    controller = ProfitController()
    with open_tiny("prompt-lookup", controller=controller) as llm:
        aside = llm._opened.runtime.runner._line.aside
        streams = [
            llm.create_completion(PROMPT, stream=True, max_tokens=n, **ENDLESS) for n in (31, 41)
        ]
        was_aside = False
        while streams:
            streams = [stream for stream in streams if next(iter(stream), None) is not None]
            was_aside = was_aside or bool(aside)
        assert was_aside
        for _ in range(2):  # a text ends when the next one begins
            llm.create_completion(PROMPT, max_tokens=2, **ENDLESS)
    assert sorted(controller._hope._lengths) == [1, 30, 40], "all but a prompt's own token"


def test_a_text_whose_context_shifts_is_one_text() -> None:
    controller = ProfitController()
    with open_tiny("prompt-lookup", controller=controller, n_ctx=64) as llm:
        llm.create_completion(PROMPT, max_tokens=200, context_shift=True, **ENDLESS)
        llm.create_completion(PROMPT, max_tokens=2, **ENDLESS)
    assert len(controller._hope._lengths) == 1
    assert 195 <= controller._hope._lengths[0] < 200
