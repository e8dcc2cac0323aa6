"""Plots of the controller: draft lengths over time, calibration, gains."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from statistics import mean
from typing import Any

from pyllama_spec.bench.figures import realised_gain
from pyllama_spec.bench.result import BenchResult
from pyllama_spec.speculative import RoundCounts

_BLUE, _ORANGE, _GREY = "#4477aa", "#ee7733", "#999999"
# Rounds that are drawn as one point, so that a text of thousands can be read.
_N_POINTS = 100


def has_rounds(result: BenchResult) -> bool:
    """Whether any round asked the drafter."""
    return any(one.n_requested for rounds in _rounds(result) for one in rounds)


def draw(axes: Any, result: BenchResult) -> None:
    """Fills three axes."""
    lengths, calibration, gains = axes
    _draw_lengths(lengths, _rounds(result))
    _draw_calibration(calibration, [one for rounds in _rounds(result) for one in rounds])
    _draw_gains(gains, result)


def _rounds(result: BenchResult) -> list[tuple[RoundCounts, ...]]:
    return [pair.spec.round_counts for pair in result.pairs]


def _draw_lengths(axes: Any, all_rounds: list[tuple[RoundCounts, ...]]) -> None:
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
        runs = [pair.spec for pair in one.pairs]
        gain = realised_gain(runs)
        points.append((sum(run.gain_expected for run in runs), gain.total))
        colours.append(_GREY if gain.known is None else _ORANGE)
    ends = [value for point in points for value in point] or [0.0]
    axes.plot([min(ends), max(ends)], [min(ends), max(ends)], color=_GREY, linestyle="--")
    axes.scatter([x for x, _ in points], [y for _, y in points], color=colours)
    axes.set_xlabel("plain rounds to be saved, expected")
    axes.set_ylabel("saved by the clock")
    axes.set_title("gain per prompt (grey: sign unknown)")
