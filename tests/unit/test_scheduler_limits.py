"""The scheduler on many random rounds serves every request and exceeds no limit."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from pyllama_spec.drafters import Draft
from pyllama_spec.speculative import Limits, Scheduler, SequenceRun, SequenceState
from pyllama_spec.speculative.controller import Span

KINDS: dict[str, dict[str, Any]] = {
    "streams": {"has_streams": True, "can_fill": True},
    "streams, no fill": {"has_streams": True},
    "snapshots": {"has_streams": True, "keeps_whole": True},
    "snapshots, unified": {"needs_equal_rows": True},
    "snapshots, alone": {"goes_alone": True, "has_streams": True},
    "unified": {"mixes_prompts": True, "can_fill": True},
}


def random_limits(rng: random.Random, kind: str, n_seqs: int) -> tuple[Limits, int, int]:
    """Limits as Round makes them, with room for a token a sequence; tokens, logits of a decode."""
    n_batch = rng.choice([n_seqs, n_seqs + 1, 8, 16, 40, 512])
    n_batch = max(n_batch, n_seqs)
    n_draft = rng.randrange(9)
    n_outputs = min(n_batch, n_seqs * (n_draft + 1))
    limits = Limits(
        n_ctx=64, width=min(n_outputs, 32), max_draft=min(n_draft, n_outputs - 1, 31),
        max_chunk=min(n_batch, rng.choice([4, 32, 512])), max_stepwise=rng.choice([0, 0, 3]),
        **KINDS[kind],
    )  # fmt: skip
    return limits, n_batch, n_outputs


def random_run(rng: random.Random, seq: int) -> SequenceRun:
    """A run that reads its prompt, or one that generates, perhaps near the context's end."""
    n = rng.choice([2, 9, 30, 57, 60, 62, 63])
    run = SequenceRun(SequenceState(seq, [1] * n), [1], max_tokens=rng.choice([1, 2, 5, 100]))
    if rng.random() < 0.35:
        run.state.n_decoded = n - rng.choice([1, 1, 2, n])
    else:
        run.n_generated = 1 if run.max_tokens == 1 else rng.randrange(1, min(run.max_tokens, n))
        run.state.n_decoded = n - 1
        run.max_tokens = max(run.max_tokens, run.n_generated + 1)
    return run


def n_tokens(decode: Sequence[Span]) -> int:
    """The tokens that it adds to the batch."""
    return sum((s.n_rows + s.n_pad) * (1 + s.n_idle) for s in decode)


def gaps(decode: Sequence[Span]) -> list[int]:
    """The idle sequences that it pads."""
    return [span.seq + 1 + i for span in decode for i in range(span.n_idle)]


def check(
    limits: Limits,
    n_batch: int,
    n_outputs: int,
    spans: list[Span],
    decodes: Sequence[Sequence[Span]],
) -> None:
    """Checks the invariants of every round."""
    done = [span for decode in decodes for span in decode]
    assert sorted(map(id, done)) == sorted(map(id, spans)), "each span in one decode"
    for decode in decodes:
        assert n_tokens(decode) <= n_batch
        n_logits = sum(1 if s.n_prompt else s.n_rows for s in decode)
        assert n_logits <= n_outputs
        ids = [span.seq for span in decode]
        assert len(set(ids)) == len(ids)
        assert not set(ids) & set(gaps(decode))
        for span in decode:
            assert span.n_past + span.n_rows + span.n_pad <= limits.n_ctx
        if not limits.mixes_prompts and len(decode) > 1:
            assert n_tokens(decode) <= limits.width
            assert ids == sorted(ids)
        if limits.needs_equal_rows and any(s.n_verified for s in decode):
            assert len({s.n_rows + s.n_pad for s in decode}) == 1
            assert all(b == a + 1 for a, b in pairwise(ids))
        if limits.goes_alone and any(s.n_verified for s in decode):
            assert len(decode) == 1 and not gaps(decode)
        assert limits.can_fill or not gaps(decode)


@pytest.mark.parametrize("kind", KINDS)
def test_random_rounds(kind: str) -> None:
    rng = random.Random(kind)
    n_together = 0
    for _ in range(4000):
        n_seqs = rng.randrange(1, 9)
        limits, n_batch, n_outputs = random_limits(rng, kind, n_seqs)
        scheduler = Scheduler(limits)
        seqs = sorted(rng.sample(range(n_seqs), rng.randrange(1, n_seqs + 1)))
        rng.shuffle(seqs)
        runs = [random_run(rng, seq) for seq in seqs]
        spans = scheduler.plan(runs)
        assert {s.seq for s in spans} >= {run.seq_id for run in runs if not run.n_missing}
        assert spans, "something is computed in every round"
        for span in spans:
            [run] = [run for run in runs if run.seq_id == span.seq]
            assert span.n_past == run.state.n_decoded
            assert span.max_draft <= max(0, run.n_left - 1)
            assert span.n_past + 1 + span.max_draft <= limits.n_ctx or span.n_prompt
            span.draft = Draft([5] * rng.randrange(span.max_draft + 1))
            span.verify(len(span.draft.ids))
        decodes = scheduler.decodes(spans)
        check(limits, n_batch, n_outputs, spans, decodes)
        n_together += any(len(decode) > 1 for decode in decodes)
    assert n_together > 500


def test_a_short_prompt_does_not_wait_behind_long_ones() -> None:
    scheduler = Scheduler(Limits(n_ctx=4096, width=8, has_streams=True))
    runs = [SequenceRun(SequenceState(i, [1] * n), [1]) for i, n in enumerate((1300, 1300, 5))]
    n_read = {span.seq: span.n_prompt for span in scheduler.plan(runs)}
    assert n_read == {2: 5, 0: 512}, "in the pieces in which each would be read alone"


@pytest.mark.parametrize(
    ("state", "max_draft"),
    [
        ({}, 8), ({"width": 8}, 7), ({"width": 8, "n_seqs": 3}, 1), ({"width": 8, "n_seqs": 9}, 0),
        ({"n_left": 1}, 0), ({"n_left": 9}, 8), ({"n_left": 6, "n_free": 5}, 4), ({"n_free": 1}, 0),
    ],
)  # fmt: skip
def test_how_much_may_be_drafted(state: dict[str, int], max_draft: int) -> None:
    n_seqs, n_past = state.get("n_seqs", 1), 100 - state.get("n_free", 99)
    limits = Limits(n_ctx=100, width=state.get("width", 32), max_draft=8)
    runs = [
        SequenceRun(SequenceState(seq, [1] * (n_past + 1), n_past), [1], max_tokens=99)
        for seq in range(n_seqs)
    ]
    for run in runs:
        run.n_generated = 99 - state.get("n_left", 98)
    assert {span.max_draft for span in Scheduler(limits).plan(runs)} == {max_draft}


@pytest.mark.parametrize(("asked", "max_draft"), [(None, 7), (0, 0), (3, 3), (7, 7), (20, 7)])
def test_a_request_drafts_no_more_than_it_allows(asked: int | None, max_draft: int) -> None:
    """The others of its round may draft as much as before."""
    limits = Limits(n_ctx=99, max_draft=7)
    runs = [SequenceRun(SequenceState(seq, [1, 2], 1), [1], max_tokens=50) for seq in range(2)]
    runs[0].max_draft = asked
    for run in runs:
        run.n_generated = 1
    together = [span.max_draft for span in Scheduler(limits).plan(runs)]
    assert together == [max_draft, 7]
    (alone,) = Scheduler(limits).plan(runs[:1])
    assert alone.max_draft == max_draft
