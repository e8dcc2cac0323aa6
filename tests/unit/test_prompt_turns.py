"""Every prompt is read eventually, and prompts delay a generating request only so long."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from pyllama_spec.speculative import Limits, Scheduler, SequenceRun, SequenceState
from pyllama_spec.speculative.controller import Span
from pyllama_spec.speculative.scheduler import _MAX_PASSED, MAX_PAUSE_S

N_LONG, MAX_CHUNK = 3000, 512


def prompt(seq: int, n: int) -> SequenceRun:
    """A run that has all of its prompt to read."""
    return SequenceRun(SequenceState(seq, [1] * n), [1] * n)


def text(seq: int) -> SequenceRun:
    """A run that generates."""
    run = SequenceRun(SequenceState(seq, [1] * 9, n_decoded=8), [1], max_tokens=10**6)
    run.n_generated = 1
    return run


def read(runs: list[SequenceRun], spans: list[Span]) -> None:
    """The effect of a round on the prompts that it reads."""
    by_seq = {run.seq_id: run for run in runs}
    for span in spans:
        by_seq[span.seq].state.n_decoded += span.n_prompt


def rounds_of_the_long_one(scheduler: Scheduler, n_short: int, n_texts: int, shorts: Any) -> int:
    """How many rounds pass until a long prompt is read, while short ones come without end."""
    long = prompt(0, N_LONG)
    texts = [text(100 + i) for i in range(n_texts)]
    short = [prompt(10 + i, shorts()) for i in range(n_short)]
    for n in range(1, 100_000):
        runs = [*texts, *short, long]
        read(runs, scheduler.plan(runs))
        for i, run in enumerate(short):
            if not run.n_missing:  # answered with one token: the next one comes
                short[i] = prompt(run.seq_id, shorts())
        if not long.n_missing:
            return n
    raise AssertionError("it is never read")


@pytest.mark.parametrize("n_texts", [0, 1, 9])
@pytest.mark.parametrize("n_short", [1, 7, 31])
@pytest.mark.parametrize("kind", ["plain", "paced", "unified"])
def test_a_long_prompt_is_read_while_short_ones_keep_coming(
    kind: str, n_short: int, n_texts: int
) -> None:
    """With seven clients of short prompts, a long one is read within a bounded number of rounds."""
    rng = random.Random(n_short)
    limits = Limits(
        n_ctx=4096, max_chunk=MAX_CHUNK, mixes_prompts=kind == "unified", is_paced=kind == "paced"
    )
    pace = Scheduler(limits).pace
    n_part = MAX_CHUNK if pace is None or not n_texts else pace.n_part
    if kind == "unified":
        n_part = MAX_CHUNK - n_texts
    for shorts in (lambda: 300, lambda: 1, lambda: MAX_CHUNK, lambda: rng.randrange(1, 900)):
        n = rounds_of_the_long_one(Scheduler(limits), n_short, n_texts, shorts)
        most = math.ceil(N_LONG / n_part) * (_MAX_PASSED + 1 + n_short)
        assert n <= most, (kind, n_short, n_texts, n, most)


def test_who_generates_pauses_no_longer_than_one_part() -> None:
    """All prompts of a round share one part, however many there are."""
    scheduler = Scheduler(Limits(n_ctx=4096, max_chunk=MAX_CHUNK, is_paced=True))
    pace = scheduler.pace
    assert pace is not None
    for token_s in (1e-6, 1e-4, 1e-3, 2e-3, 8e-3, 1.0):
        for _ in range(20):
            pace.learn(64, 64 * token_s)
        runs = [text(0), *(prompt(i, n) for i, n in enumerate((3, 3000, 300, 900), 1))]
        n_read = sum(span.n_prompt for span in scheduler.plan(runs))
        assert n_read == pace.n_part
        assert n_read == 32 or n_read * token_s <= MAX_PAUSE_S * 1.001
        # As much as the bound allows: a step more is above it.
        assert n_read == MAX_CHUNK or (n_read + 32) * token_s > MAX_PAUSE_S
        alone = sum(span.n_prompt for span in scheduler.plan(runs[1:]))
        assert alone >= MAX_CHUNK, "nobody waits: the largest parts are the fastest"
