"""Plots a result. Needs matplotlib, which only this file imports."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

from pyllama_spec.bench.figures import (
    BenchResult,
    Totals,
    acceptance_by_depth,
    ratio,
)
from pyllama_spec.errors import ArgumentError, UnsupportedError

FORMATS = (".png", ".svg", ".pdf")
_BLUE, _ORANGE, _GREY = "#4477aa", "#ee7733", "#999999"


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
    """Draws speed-up per prompt with its spread, acceptance by depth, and the split of the time."""
    check_plot(path)
    height = max(4.0, 1.5 + 0.28 * max(len(result.prompts), 1))
    figure = _figure_class()(figsize=(14, height), layout="constrained")
    speed, depth, time = figure.subplots(1, 3, width_ratios=(2.2, 1.2, 1))
    figure.suptitle(_title(result))
    _draw_speedups(speed, result)
    _draw_depths(depth, result)
    _draw_time(time, result)
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


def _draw_depths(axes: Any, result: BenchResult) -> None:
    depths = acceptance_by_depth(pair.spec for pair in result.pairs)
    x = [one.depth for one in depths]
    reached = [one.rate if one.rate is not None else float("nan") for one in depths]
    drafted = [one.rate_of_drafted or 0.0 for one in depths]
    axes.plot(x, reached, "o-", color=_BLUE, label="if those before it were")
    axes.plot(x, drafted, "s--", color=_ORANGE, label="of all drafted")
    axes.set_xticks(x)
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("depth in the draft")
    axes.set_ylabel("share accepted")
    axes.legend(loc="lower left")
    axes.set_title("acceptance by depth")


def _draw_time(axes: Any, result: BenchResult) -> None:
    """Draws stacked milliseconds per token."""
    both = result.comparison
    sides = (both.plain, both.spec)
    parts = (
        ("verify", _BLUE, [side.timing.verify_s for side in sides]),
        ("draft", _ORANGE, [side.timing.draft_s for side in sides]),
        ("rest", _GREY, [side.timing.overhead_s for side in sides]),
    )
    bottom = [0.0, 0.0]
    for label, colour, seconds in parts:
        heights = [_ms(one, side) for one, side in zip(seconds, sides, strict=True)]
        axes.bar(["plain", "speculative"], heights, bottom=bottom, color=colour, label=label)
        bottom = [a + b for a, b in zip(bottom, heights, strict=True)]
    axes.set_ylim(0, 1.25 * max(*bottom, 1e-9))  # room for the legend
    axes.set_ylabel("ms per token")
    axes.legend(loc="upper left")
    axes.set_title("where the time goes")


def _ms(seconds: float, side: Totals) -> float:
    return ratio(1e3 * seconds, side.n_tokens) or 0.0
