"""Measures the cost of verify batches when a target is opened, in some milliseconds."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from time import perf_counter

from pyllama_spec.engine import Batch, Context
from pyllama_spec.errors import EngineError


def measure_rows(
    target: Context, max_rows: int, most_s: float = 0.3, least_s: float = 0.3
) -> dict[int, float]:
    """Seconds of decodes of 1 to max_rows rows in an empty context, which is emptied.

    It takes least_s, and up to most_s plus one batch to decode each width; further widths are left
    out.

    Each width is decoded twice, the first of which makes the engine's graph; while time is left all
    are timed again. The quickest counts: what else runs on a machine only makes a decode slower.
    """
    max_rows = min(max_rows, target.n_batch, target.n_ctx_seq)
    batch, token = Batch(max_rows), target.model.vocab.bos or 0

    def seconds(n_rows: int) -> float:
        target.memory.clear()
        batch.clear()
        batch.extend([token] * n_rows, 0, output_all=True)
        start = perf_counter()
        target.decode(batch)
        return perf_counter() - start

    begun = perf_counter()
    quickest: dict[int, float] = {}
    seconds(1)  # pages of the file, caches
    try:
        for n_rows in in_order(max_rows):
            if len(quickest) >= 2 and perf_counter() - begun > most_s:
                break
            quickest[n_rows] = min(seconds(n_rows), seconds(n_rows))
        while perf_counter() - begun < least_s:
            for n_rows, least in quickest.items():
                quickest[n_rows] = min(least, seconds(n_rows))
                if perf_counter() - begun > least_s:
                    break
    finally:
        # After a failed decode this fails too, and the error of the decode says more.
        with suppress(EngineError):
            target.memory.clear()
            target.pause_threads()
    return quickest


def in_order(max_rows: int) -> list[int]:
    """The widths in order: 1 and max_rows, then the middle of the widest remaining gap."""
    out = [1, max_rows] if max_rows > 1 else [1]
    while len(out) < max_rows:
        known = sorted(out)
        low, high = max(pairwise(known), key=lambda ab: ab[1] - ab[0])
        out.append((low + high) // 2)
    return out
