"""Helpers for the tests of Llama."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pyllama_spec import Drafter, Llama
from pyllama_spec.cli.entry import main
from tests.models import EOS, model_path
from tests.scripted import Hostile, Pattern, Perfect, Wrong

PROMPT = list(b"the cat sat on")
GREEDY: dict[str, Any] = {"temperature": 0.0}
# Every draw, penalty and cut that a seed has to survive.
SAMPLED: dict[str, Any] = {
    "temperature": 0.8, "seed": 11, "repeat_penalty": 1.15, "frequency_penalty": 0.2,
    "presence_penalty": 0.1, "top_k": 60,
}  # fmt: skip
# Of one response to the next these differ, or may.
VOLATILE = ("id", "created", "speculation", "timing")


def open_tiny(draft: Drafter | str | None = None, kind: str = "llama", **overrides: Any) -> Llama:
    """A tiny model on one thread, which drafts in every round: clocks decide nothing in a test."""
    values: dict[str, Any] = {
        "n_ctx": 256, "n_threads": 1, "draft": draft, "controller": "fixed",
    }  # fmt: skip
    return Llama(model_path(kind), **{**values, **overrides})


def copy_alone(folder: Path, kind: str = "llama") -> Path:
    """A tiny model in a folder without drafts: "auto" would find those of other tests."""
    path = model_path(kind)
    return Path(shutil.copy(path, folder / path.name))


class Forced:
    """A logits processor that dictates the text, whatever the model thinks."""

    def __init__(self, n_prompt: int, script: Sequence[int]) -> None:
        self.n_prompt, self.script = n_prompt, list(script)

    def __call__(
        self, ids: npt.NDArray[np.int32], scores: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.float32]:
        at = len(ids) - self.n_prompt
        scores[:] = -np.inf
        scores[self.script[at] if at < len(self.script) else EOS] = 0.0
        return scores


def drafters(reference: Sequence[int]) -> list[Drafter | None]:
    """None, and drafters of every kind that know the whole text."""
    return [
        None,
        Perfect(reference, 8),
        Perfect(reference, 3),
        Wrong(reference),
        Pattern(reference, range(9)),
        Hostile(reference, 320, EOS),
    ]


def lasting(response: dict[str, Any]) -> dict[str, Any]:
    """A response without what differs each time, and without what the memory held before it."""
    kept = {key: value for key, value in response.items() if key not in VOLATILE}
    if kept.get("usage"):
        kept["usage"] = counts_of(response)
    return kept


def counts_of(response: dict[str, Any]) -> dict[str, int]:
    """The usage of a response, without how much of the prompt the memory held."""
    return {key: n for key, n in response["usage"].items() if key != "prompt_tokens_details"}


def dictated(
    script: Sequence[int], draft: Drafter | None, prompt: Sequence[int] = PROMPT, **options: Any
) -> dict[str, Any]:
    """A completion whose tokens are dictated."""
    with open_tiny(draft) as llm:
        forced = Forced(len(prompt), script)
        options = {"max_tokens": None, **GREEDY, **options}
        return dict(llm.create_completion(list(prompt), logits_processor=forced, **options))


def text_of(response: dict[str, Any]) -> str:
    """The text of a completion or of a chunk of one."""
    return str(response["choices"][0]["text"])


def finish_of(response: dict[str, Any]) -> str | None:
    """The finish_reason of a completion or of a chunk of one."""
    reason: str | None = response["choices"][0]["finish_reason"]
    return reason


class Screen(io.StringIO):
    """A terminal that only shows."""

    def isatty(self) -> bool:
        return True


def cli(
    *words: object, stdin: str = "", out: io.StringIO | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs the command in this process; `out` is its standard output."""
    given, sys.stdin = sys.stdin, io.StringIO(stdin)
    try:
        with redirect_stdout(out or io.StringIO()) as said, redirect_stderr(io.StringIO()) as err:
            code = main([str(word) for word in words])
    finally:
        sys.stdin = given
    return subprocess.CompletedProcess(list(map(str, words)), code, said.getvalue(), err.getvalue())
