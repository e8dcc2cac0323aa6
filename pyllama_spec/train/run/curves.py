"""Writes the measurements of a fit as tables and a plot."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyllama_spec.train.files import write_atomic, write_json


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measurement of a fit.

    Attributes:
        step: optimiser steps so far.
        n_tokens: answer tokens seen so far.
        lr: learning rate.
        loss: mean cross-entropy by depth since the last measurement, in nats.
        hits: share of right picks by depth since the last measurement, on the training text.
        acceptance: share of rounds in which draft i was accepted, on held-out greedy text.
        given: share of drafts i accepted among those whose earlier tokens were accepted.
        tokens_per_round: tokens per round on held-out greedy text.
    """

    step: int
    n_tokens: int
    lr: float
    loss: list[float]
    hits: list[float]
    acceptance: list[float]
    given: list[float]
    tokens_per_round: float

    def as_dict(self) -> dict[str, Any]:
        """The measurement as JSON types."""
        return asdict(self)


def write_curves(folder: Path, course: Sequence[Measurement]) -> str:
    """Writes curves.json, curves.csv, and curves.png where matplotlib is installed."""
    write_json(folder / "curves.json", [point.as_dict() for point in course])
    data = _csv(course).encode()
    write_atomic(folder / "curves.csv", lambda file: file.write(data))
    try:
        picture = _png(course)
    except ImportError as error:
        return f"no picture of the curves ({error}): pip install 'pyllama_spec[train]' brings it"
    write_atomic(folder / "curves.png", lambda file: file.write(picture))
    return ""


def _csv(course: Sequence[Measurement]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    depths = range(len(course[0].loss)) if course else range(0)
    names = ("loss", "hits", "acceptance", "given")
    writer.writerow(
        ["step", "n_tokens", "lr", "tokens_per_round", *(f"{n}_{i}" for n in names for i in depths)]
    )
    for point in course:
        values = [getattr(point, name)[i] for name in names for i in depths]
        writer.writerow([point.step, point.n_tokens, point.lr, point.tokens_per_round, *values])
    return out.getvalue()


def _png(course: Sequence[Measurement]) -> bytes:
    # Without pyplot: no window, no global state.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    losses, accepted = figure.subplots(1, 2)
    x = [point.n_tokens for point in course]
    for depth in range(len(course[0].loss) if course else 0):
        losses.plot(x, [point.loss[depth] for point in course], label=f"depth {depth + 1}")
        accepted.plot(x, [point.acceptance[depth] for point in course], label=f"depth {depth + 1}")
    losses.set(xlabel="answer tokens seen", ylabel="cross-entropy (nats)")
    accepted.set(xlabel="answer tokens seen", ylabel="rounds in which the draft was accepted")
    accepted.set_ylim(0, 1)
    for axes in (losses, accepted):
        axes.grid(alpha=0.3)
    losses.legend()
    if course:
        # The file holds the weights of this one, not those of the last step.
        # The last of equal measurements, as the fit takes it.
        best = max(reversed(course), key=lambda point: point.tokens_per_round)
        accepted.axvline(best.n_tokens, color="grey", linestyle=":")
        accepted.set_title(f"best: {best.tokens_per_round:.2f} tokens per round, dotted")
    out = io.BytesIO()
    # The version would change the file from one machine to the next.
    figure.savefig(out, format="png", dpi=120, metadata={"Software": None})
    return out.getvalue()
