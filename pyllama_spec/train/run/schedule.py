"""Learning rate and moments of measuring, by step."""

from __future__ import annotations

import math

# What is left of the peak rate at the end.
_FLOOR = 0.01


def learning_rate(step: int, n_steps: int, peak: float, warmup: float) -> float:
    """The rate of a step: a straight rise, then half a cosine (SGDR, arXiv 1608.03983).

    Args:
        step: 0 .. n_steps - 1.
        n_steps: of the whole run.
        peak: the largest rate.
        warmup: the share of steps that rise.

    """
    n_warm = max(round(warmup * n_steps), 1)
    if step < n_warm:
        return peak * (step + 1) / n_warm
    done = (step - n_warm) / max(n_steps - n_warm, 1)
    return peak * (_FLOOR + (1 - _FLOOR) * 0.5 * (1 + math.cos(math.pi * done)))


def is_measured(step: int, n_steps: int, n_evals: int) -> bool:
    """Whether to measure once `step` steps are done: n_evals times, evenly, and at the end."""
    if step == 0:
        return False
    return step == n_steps or (step * n_evals) // n_steps > ((step - 1) * n_evals) // n_steps
