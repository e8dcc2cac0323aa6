"""Helpers for the tests of the benchmark."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from pyllama_spec.bench import BenchConfig
from pyllama_spec.bench.figures import BenchResult, Pair, PromptResult, Setup
from pyllama_spec.bench.sides import Run
from pyllama_spec.speculative.stats import SpeculationStats, Timing
from tests.models import model_path

CHAT = [{"role": "user", "content": "one two three one two"}]
LINES: list[dict[str, Any]] = [
    {"id": "chat", "category": "a", "messages": CHAT},
    {"id": "text", "category": "b", "prompt": "abc abc abc ab"},
]


def write_prompts(folder: Path, lines: Sequence[dict[str, Any]] = LINES) -> Path:
    """A prompts file."""
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def tiny_config(folder: Path, **options: Any) -> BenchConfig:
    """Two prompts on a PERM model whose text repeats itself, on one thread."""
    values: dict[str, Any] = {
        "model_path": model_path("perm", n_cycles=20), "draft": "prompt-lookup", "n_threads": 1,
        "n_tokens": 40, "repeats": 2, "controller": "fixed",
    }  # fmt: skip
    values |= options
    if "prompts" not in values:
        values["prompts"] = write_prompts(folder)
    return BenchConfig(**values)


def made_up_run(
    rounds: Sequence[tuple[int, int]], decode_s: float, *, first: int = 0, **options: Any
) -> Run:
    """A run whose tokens count up, with half a second of prompt; fields of its stats by name."""
    n = 1 + sum(accepted + 1 for _, accepted in rounds)
    timing = {name: options.pop(name) for name in ("draft_s", "verify_s") if name in options}
    own = {f.name for f in fields(Run)} & set(options)
    values = {"is_stopped": False, **{name: options.pop(name) for name in own}}
    counted = [[one[i] for one in rounds] for i in (0, 1)]
    histogram = [counted[1].count(k) for k in range(max(counted[1], default=0) + 1)]
    stats = SpeculationStats(
        rounds=len(rounds), drafted=sum(counted[0]), accepted=sum(counted[1]),
        accepted_histogram=histogram, **options,
    )  # fmt: skip
    return Run(
        tokens=tuple(range(first, first + n)), rounds=tuple(rounds), stats=stats,
        timing=Timing(prompt_s=0.5, decode_s=decode_s, n_decoded=n - 1, **timing), **values,
    )  # fmt: skip


def made_up_result(prompts: Sequence[PromptResult], **options: Any) -> BenchResult:
    """A result with a made-up machine."""
    setup = Setup(
        target="a model", drafter="a drafter", draft="a draft", n_ctx=256, n_threads=2, max_draft=3,
        provenance={"files": {}},
    )  # fmt: skip
    return BenchResult(BenchConfig(model_path="a.gguf"), setup, tuple(prompts), **options)


def one_prompt(*pairs: Pair, name: str = "p") -> PromptResult:
    """A prompt's result."""
    return PromptResult(name, "a", 3, pairs)
