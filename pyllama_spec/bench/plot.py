"""Plots a result. Needs matplotlib, which only this file imports."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

from pyllama_spec.bench.figures import BenchResult
from pyllama_spec.errors import ArgumentError, UnsupportedError

FORMATS = (".png", ".svg", ".pdf")
_ORANGE, _GREY = "#ee7733", "#999999"


def check_plot(path: str | os.PathLike[str]) -> None:
    """Refuses, before a long run, a plot that cannot be written after it."""
    target = Path(path)
    if target.suffix.lower() not in FORMATS:
        raise ArgumentError("plot", target, f"a name that ends in one of {', '.join(FORMATS)}")
    if not target.parent.is_dir():
        raise ArgumentError(
            "plot", target, problem="is in a folder that does not exist", remedy="make it first"
        )
    _figure_class()


def plot(result: BenchResult, path: str | os.PathLike[str]) -> None:
    """Draws the speed-up per prompt with its spread."""
    check_plot(path)
    height = max(4.0, 1.5 + 0.28 * max(len(result.prompts), 1))
    figure = _figure_class()(figsize=(9, height), layout="constrained")
    figure.suptitle(_title(result))
    _draw_speedups(figure.subplots(), result)
    figure.savefig(path, dpi=120)


def _figure_class() -> Any:
    try:
        return importlib.import_module("matplotlib.figure").Figure
    except ImportError as error:
        raise UnsupportedError(
            f"a plot needs matplotlib ({error}): pip install pyllama_spec[bench]"
        ) from None


def _title(result: BenchResult) -> str:
    both, setup = result.comparison, result.setup
    text = f"{setup.target}, drafter {setup.drafter}"
    if both.speedup is not None:
        text += (
            f": {both.speedup:.2f}x ({both.plain.tps or 0:.1f} to {both.spec.tps or 0:.1f} tokens/s"
            f"), {both.spec.stats.tokens_per_round:.2f} tokens per round"
        )
    is_part = result.is_interrupted or result.failure is not None
    return f"NOT COMPLETE\n{text}" if is_part else text


def _draw_speedups(axes: Any, result: BenchResult) -> None:
    """A point per prompt at its total, a line from the slowest repeat to the fastest."""
    categories = list(result.categories)
    names: list[str] = []
    for prompt in result.prompts:
        speedup, around = prompt.comparison.speedup, prompt.speedups
        if speedup is None or around is None:
            continue
        colour = f"C{categories.index(prompt.category) % 10}"
        y = len(names)
        axes.plot([around.min, around.max], [y, y], color=colour, linewidth=2, alpha=0.5)
        axes.plot([speedup], [y], "o", color=colour)
        names.append(prompt.id + ("" if prompt.fork is None else " (text forks)"))
    axes.axvline(1.0, color=_GREY, linestyle="--", linewidth=1)
    if result.comparison.speedup is not None:
        axes.axvline(result.comparison.speedup, color=_ORANGE, linewidth=1, label="all prompts")
        axes.legend(loc="lower right")
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel("speed-up over plain decoding, min .. max of the repeats")
    axes.set_title("speed-up per prompt")
