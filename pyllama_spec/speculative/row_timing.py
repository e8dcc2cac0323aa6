"""What verify batches cost, measured in some milliseconds when a target is opened."""

from __future__ import annotations

from itertools import pairwise
from time import perf_counter

from pyllama_spec.engine import Batch, Context

# Longer than this it does not take, one batch aside: what is left out the rounds will measure.
_BUDGET_S = 0.3


def measure_rows(target: Context, n_most: int, budget_s: float = _BUDGET_S) -> dict[int, float]:
    """Times decodes of 1 to n_most rows at the beginning of an empty context, and empties it again.

    The two ends come first, so that all that is between them can be guessed where time is short.
    Each width is decoded twice, the first of which makes the engine's graph; while time is left all
    are timed again. Of each the quickest counts: what else runs on a machine makes a decode slower
    and never quicker.

    Args:
        target: nothing of a text may be in it.
        n_most: the widest batch.
        budget_s: seconds after which no further width is begun.

    Returns:
        Seconds by rows.

    """
    n_most = min(n_most, target.n_batch, target.n_ctx_seq)
    batch, token = Batch(n_most), target.model.vocab.bos or 0

    def seconds(n_rows: int) -> float:
        target.memory.clear()
        batch.clear()
        batch.extend([token] * n_rows, 0, output_all=True)
        start = perf_counter()
        target.decode(batch)
        return perf_counter() - start

    begun = perf_counter()
    found: dict[int, float] = {}
    seconds(1)  # pages of the file, caches
    try:
        for n_rows in _order(n_most):
            if len(found) >= 2 and perf_counter() - begun > budget_s:
                break
            found[n_rows] = min(seconds(n_rows), seconds(n_rows))
        while perf_counter() - begun < budget_s:
            for n_rows, least in found.items():
                found[n_rows] = min(least, seconds(n_rows))
                if perf_counter() - begun > budget_s:
                    break
    finally:
        target.memory.clear()
        target.pause_threads()
    return found


def _order(n_most: int) -> list[int]:
    """1 and n_most, then what lies in the middle of the widest gap that is left."""
    out = [1, n_most] if n_most > 1 else [1]
    while len(out) < n_most:
        known = sorted(out)
        low, high = max(pairwise(known), key=lambda ab: ab[1] - ab[0])
        out.append((low + high) // 2)
    return out
