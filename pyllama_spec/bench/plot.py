"""Plots a result. Needs matplotlib, which only this file imports."""

from __future__ import annotations

import importlib
import os
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

from pyllama_spec.bench.figures import (
    BenchResult,
    Totals,
    acceptance_by_depth,
    ratio,
)
from pyllama_spec.errors import ArgumentError, UnsupportedError
from pyllama_spec.speculative import RoundCounts

FORMATS = (".png", ".svg", ".pdf")
_BLUE, _ORANGE, _GREY = "#4477aa", "#ee7733", "#999999"
# Rounds that are drawn as one point, so that a text of thousands can be read.
_N_POINTS = 100


def check_plot(path: str | os.PathLike[str]) -> None:
    """Refuses, before a long run, a plot that cannot be written after it."""
    target = Path(path)
    if target.suffix.lower() not in FORMATS:
        raise ArgumentError(f"plot={str(path)!r} should end in one of {', '.join(FORMATS)}")
    if not target.parent.is_dir():
        raise ArgumentError(f"the folder {target.parent} of the plot does not exist; make it first")
    _figure_class()


def plot(result: BenchResult, path: str | os.PathLike[str]) -> None:
    """Draws speed-up per prompt with its spread, acceptance by depth, and the split of the time.

    For rounds with drafts, it also draws: draft lengths over the rounds of a text, expected and
    real accepted tokens, and the time that drafts saved in each prompt.
    """
    check_plot(path)
    n_rows = max(len(result.prompts), 1)
    height, has_rounds = max(4.0, 1.5 + 0.28 * n_rows), _has_rounds(result)
    figure = _figure_class()(figsize=(14, height + 4.0 * has_rounds), layout="constrained")
    if has_rounds:
        (speed, depth, time), below = figure.subplots(
            2, 3, width_ratios=(2.2, 1.2, 1), height_ratios=(height, 4.0)
        )
        _draw_controller(below, result)
    else:
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
    marks = []
    if result.is_synthetic:
        marks.append("SYNTHETIC ACCEPTANCE: speed only, not the draft's quality")
    if result.is_interrupted or result.failure is not None:
        marks.append("NOT COMPLETE")
    return "\n".join([*marks, text])


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
    if result.is_synthetic:
        acceptance = result.config.synthetic_acceptance
        axes.plot(range(1, len(acceptance) + 1), acceptance, "x", color=_GREY, label="asked for")
    axes.set_xticks(x)
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("depth in the draft")
    axes.set_ylabel("share accepted")
    axes.legend(loc="lower left")
    axes.set_title("acceptance by depth" + (" (SYNTHETIC)" if result.is_synthetic else ""))


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


def _has_rounds(result: BenchResult) -> bool:
    """Whether any round asked the drafter."""
    return any(one.n_requested for rounds in _rounds(result) for one in rounds)


def _draw_controller(axes: Any, result: BenchResult) -> None:
    """Fills three axes."""
    lengths, calibration, gains = axes
    _draw_lengths(lengths, _rounds(result))
    _draw_calibration(calibration, [one for rounds in _rounds(result) for one in rounds])
    _draw_gains(gains, result)


def _rounds(result: BenchResult) -> list[list[RoundCounts]]:
    return [pair.spec.stats.round_counts for pair in result.pairs]


def _draw_lengths(axes: Any, all_rounds: list[list[RoundCounts]]) -> None:
    """Draws mean draft lengths over all texts, by the number of the round."""
    longest = max((len(rounds) for rounds in all_rounds), default=1)
    width = -(-longest // _N_POINTS)
    parts: dict[str, tuple[str, Callable[[RoundCounts], int]]] = {
        "proposed": (_GREY, lambda one: one.n_proposed),
        "drafted": (_BLUE, lambda one: one.n_verified),
        "accepted": (_ORANGE, lambda one: one.n_accepted),
    }
    for label, (colour, read) in parts.items():
        sums: defaultdict[int, list[int]] = defaultdict(list)
        for rounds in all_rounds:
            for i, one in enumerate(rounds):
                sums[i // width].append(read(one))
        keys = sorted(sums)
        axes.plot(
            [width * k for k in keys], [mean(sums[k]) for k in keys], color=colour, label=label
        )
    axes.set_xlabel("round of a text")
    axes.set_ylabel("tokens, mean over texts")
    axes.legend(loc="upper right")
    axes.set_title("lengths over time")


def _draw_calibration(axes: Any, rounds: list[RoundCounts]) -> None:
    """Draws accepted tokens of verified drafts by the number expected."""
    cells: defaultdict[int, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for one in rounds:
        if one.n_verified and one.n_expected:
            cell = cells[round(2 * one.n_expected)]
            cell[0] += one.n_expected
            cell[1] += one.n_accepted
            cell[2] += 1.0
    points = [(c[0] / c[2], c[1] / c[2], c[2]) for _, c in sorted(cells.items())]
    highest = max((max(x, y) for x, y, _ in points), default=1.0)
    axes.plot([0, highest], [0, highest], color=_GREY, linestyle="--", linewidth=1)
    if points:
        max_rounds = max(n for _, _, n in points)
        sizes = [10.0 + 190.0 * n / max_rounds for _, _, n in points]
        axes.scatter([x for x, _, _ in points], [y for _, y, _ in points], s=sizes, color=_BLUE)
    axes.set_xlabel("accepted tokens expected of a round")
    axes.set_ylabel("accepted, mean")
    axes.set_title("calibration (size: rounds)")


def _draw_gains(axes: Any, result: BenchResult) -> None:
    """Draws a point per prompt: measured and expected gain, in rounds of plain decoding.

    Grey if too few rounds were measured to tell whether drafts saved time.
    """
    points, colours = [], []
    for one in result.prompts:
        counts = one.comparison.spec.stats
        points.append((counts.gain_expected, counts.gain_realised.total))
        colours.append(_GREY if counts.gain_realised.known is None else _ORANGE)
    ends = [value for point in points for value in point] or [0.0]
    axes.plot([min(ends), max(ends)], [min(ends), max(ends)], color=_GREY, linestyle="--")
    axes.scatter([x for x, _ in points], [y for _, y in points], color=colours)
    axes.set_xlabel("plain rounds to be saved, expected")
    axes.set_ylabel("saved by the clock")
    axes.set_title("gain per prompt (grey: sign unknown)")
