"""Invariants of every generation, with any drafter: the oracles that tests share.

Tests name them by number:

    O1  row-exact           each token is the sampler's choice from its own verified row
    O2  teacher-forced      each row equals that of single-token decodes in a fresh context
    O3  draft invariance    a head says the same for one prefix on every path to it
    O4  hidden rows         layer inputs of a batch equal those of single-token decodes
    O5  bookkeeping         decoded, drafted, accepted and kept tokens add up after each round
    O6  state               after a rollback a sequence continues as if it had never gone further
    O7  child process       a call ends in an exit code, never in a signal
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pyllama_spec.drafters import Drafter, NoDrafter
from pyllama_spec.engine import Batch, Context, Model, Sampler, SamplerParams
from pyllama_spec.errors import CancelledError
from pyllama_spec.speculative import (
    SequenceState,
    SpeculationStats,
    SpeculativeLoop,
    Step,
    StepSampler,
    Timing,
)
from tests.models import model_path

Rows = npt.NDArray[np.float32]

GREEDY = SamplerParams(temperature=0)
ROOT = Path(__file__).resolve().parents[1]


def sampled(seed: int = 1, **overrides: Any) -> SamplerParams:
    """Temperature 0.8 with repeat, frequency and presence penalties."""
    values: dict[str, Any] = {
        "temperature": 0.8, "seed": seed, "repeat_penalty": 1.1, "frequency_penalty": 0.3,
        "presence_penalty": 0.2, "penalty_last_n": 32,
    }  # fmt: skip
    return SamplerParams(**{**values, **overrides})


@cache
def tiny(kind: str, **options: Any) -> Model:
    """A tiny model, loaded once per test run."""
    return Model(model_path(kind, **options))


def tiny_context(model: Model, **overrides: Any) -> Context:
    """A small context on one thread, with recurrent snapshots for the scripted drafters."""
    values: dict[str, Any] = {
        "n_ctx": 256, "n_batch": 64, "n_ubatch": 32, "n_rs_seq": 10, "n_threads": 1,
    }  # fmt: skip
    return Context(model, **{**values, **overrides})


class RowExactSampler(StepSampler):
    """O1: around a Sampler; every token must be the one that a clone takes from the same row.

    Reads the row through Context.logits(), independently of the sampler, and checks that a draw
    depends only on the state that accept() advances.
    """

    def __init__(self, sampler: Sampler) -> None:
        self.inner = sampler
        self.n_checked = 0

    def sample(self, context: Context, i: int) -> int:
        expected = self.inner.clone().sample_row(context.logits(i))
        token = self.inner.sample(context, i)
        assert token == expected, f"O1: row {i} gives {expected}, but {token} was emitted"
        self.n_checked += 1
        return token

    def accept(self, token: int, *, generated: bool = True) -> None:
        self.inner.accept(token, generated=generated)


@dataclass
class LoopRun:
    """One generation and what was seen of it."""

    prompt: list[int]
    steps: list[Step] = field(default_factory=list)
    # The logits that each generated token was taken from. shape: [n_tokens][n_vocab]
    rows: list[Rows] = field(default_factory=list)
    stats: SpeculationStats = field(default_factory=SpeculationStats)
    timing: Timing = field(default_factory=Timing)

    @property
    def tokens(self) -> list[int]:
        return [token for step in self.steps for token in step.tokens]

    @property
    def text(self) -> list[int]:
        return self.prompt + self.tokens

    @property
    def finish_reason(self) -> str | None:
        return self.steps[-1].finish_reason


def make_sampler(model: Model, params: SamplerParams, prompt: Sequence[int]) -> RowExactSampler:
    """A sampler that has seen the prompt, as the penalties want it."""
    sampler = Sampler(model, params)
    for token in prompt:
        sampler.accept(token, generated=False)
    return RowExactSampler(sampler)


def generate(
    loop: SpeculativeLoop,
    seq: SequenceState,
    prompt: Sequence[int],
    max_tokens: int,
    params: SamplerParams = GREEDY,
    *,
    keep_rows: bool = False,
) -> LoopRun:
    """Prefills and generates, with O1, O5 and the statistics' invariants after every round."""
    context, run = loop.target, LoopRun(list(prompt))
    sampler = make_sampler(context.model, params, prompt)

    def observe(row: int, token: int) -> None:
        if keep_rows:
            run.rows.append(context.logits(row).copy())

    loop.prefill(seq, prompt)
    assert (seq.tokens, seq.n_decoded) == (run.prompt, len(prompt))
    for step in loop.generate(seq, sampler, max_tokens, observe):
        run.steps.append(step)
        check_step(step)
        check_bookkeeping(context, seq)
        assert seq.tokens == run.text
    run.stats, run.timing = loop.stats, loop.timing
    assert sampler.n_checked == len(run.tokens) <= max_tokens
    check_statistics(run)
    return run


def forked(loop: SpeculativeLoop, source: SequenceState, seq_id: int) -> SequenceState:
    """A copy of a text on another sequence, as a request with its prefix begins with it."""
    copy = SequenceState(seq_id)
    loop.round.sequences._adopt(copy, source, source.n_decoded)
    copy.tokens += source.tokens[source.n_decoded :]
    return copy


def cancel_at(
    loop: SpeculativeLoop, seq: SequenceState, prompt: Sequence[int], n_rounds: int
) -> None:
    """Generates so many steps, has the next one cancelled, and lets decodes run again."""
    loop.prefill(seq, list(prompt))
    steps = loop.generate(seq, make_sampler(loop.target.model, GREEDY, prompt), 60)
    for _ in range(n_rounds):
        next(steps)
    loop.target.cancel()
    with pytest.raises(CancelledError):
        next(steps)
    loop.target.cancel(False)


def run_once(
    context: Context,
    drafter: Drafter | None,
    prompt: Sequence[int],
    max_tokens: int,
    params: SamplerParams = GREEDY,
    *,
    n_draft: int | None = None,
    keep_rows: bool = False,
) -> LoopRun:
    """generate() from nothing: the memory is cleared, loop and sequence are new."""
    context.memory.clear()
    loop = SpeculativeLoop(context, drafter or NoDrafter(), n_draft)
    return generate(loop, SequenceState(), prompt, max_tokens, params, keep_rows=keep_rows)


def check_step(step: Step) -> None:
    """Each round commits a token, and accepts no more than it drafted."""
    assert len(step.tokens) >= 1, "a round without a token can repeat for ever"
    assert 0 <= step.n_accepted <= step.n_drafted
    assert step.n_accepted in (len(step.tokens), len(step.tokens) - 1)


def check_bookkeeping(context: Context, seq: SequenceState) -> None:
    """O5: all but the pending token are decoded, at positions 0, 1, ... and nothing is left over.

    A recurrent state has only its last position, and a sliding window without swa_full its last
    n_swa.
    """
    info = context.model.info
    first, last = context.memory.positions(seq.seq_id)
    assert seq.n_decoded == len(seq.tokens) - 1, "exactly one token is pending"
    assert last == len(seq.tokens) - 2, "O5: the memory ends at the last decoded token"
    # In a cache that sequences share, the cells of one that its window has left may go to another.
    if info.n_swa and (not context.params.swa_full or context.params.kv_unified):
        assert first <= max(0, last + 1 - info.n_swa)
    else:
        assert first == (last if info.has_recurrent_state else 0)


def check_statistics(run: LoopRun) -> None:
    stats, timing = run.stats, run.timing
    in_rounds = len(run.tokens) - len(run.steps[0].tokens)
    assert stats.rounds == len(run.steps) - 1
    assert in_rounds == stats.accepted + stats.rounds == timing.n_decoded
    assert sum(stats.accepted_histogram) == stats.rounds
    assert sum(i * n for i, n in enumerate(stats.accepted_histogram)) == stats.accepted
    assert stats.drafted == sum(step.n_drafted for step in run.steps)
    assert stats.accepted == sum(step.n_accepted for step in run.steps) <= stats.drafted
    assert timing.overhead_s == timing.decode_s - timing.draft_s - timing.verify_s
    assert timing.overhead_s >= 0


def forced_rows(
    model: Model, tokens: Sequence[int], layers: Sequence[int] = (), **params: Any
) -> tuple[Rows, Rows]:
    """Logits and layer inputs of a text, decoded one token at a time in a context of its own.

    Returns:
        [n_tokens, n_vocab] and [n_layers, n_tokens, n_embd].

    """
    values = {"n_ctx": max(len(tokens), 8), "n_batch": 32, "n_ubatch": 32, "n_threads": 1}
    logits: list[Rows] = []
    inputs: list[Rows] = []
    with Context(model, target_layers=tuple(layers), **{**values, **params}) as context:
        batch = Batch(1)
        for position, token in enumerate(tokens):
            batch.clear()
            batch.add(token, position, output=True)
            context.decode(batch)
            logits.append(context.logits(0).copy())
            if layers:
                inputs.append(np.stack([context.layer_input(layer)[0] for layer in layers]))
    return np.stack(logits), np.stack(inputs, axis=1) if layers else np.zeros((0,), np.float32)


def text_by_hand(
    model: Model, prompt: Sequence[int], n_tokens: int, params: SamplerParams
) -> list[int]:
    """Plain decoding written out with the engine alone, as the loop must do it without drafts."""
    sampler, tokens = Sampler(model, params), list(prompt)
    for token in prompt:
        sampler.accept(token, generated=False)
    with tiny_context(model) as context:
        batch = Batch(1)
        for position in range(len(prompt) + n_tokens - 1):
            batch.clear()
            batch.add(tokens[position], position, output=True)
            context.decode(batch)
            if position >= len(prompt) - 1:
                tokens.append(sampler.sample(context, 0))
                sampler.accept(tokens[-1])
    return tokens


def check_teacher_forced(model: Model, run: LoopRun) -> None:
    """O2 and O6: what each token was taken from is what a fresh context gives for its prefix.

    Covers the state after a rollback: the row of the next round is computed from it.
    """
    expected = forced_rows(model, run.text[:-1])[0][len(run.prompt) - 1 :]
    got = np.stack(run.rows)
    assert got.shape == expected.shape
    worst = np.abs(got - expected).max(axis=1)
    bad = np.flatnonzero(~(worst <= 0.0))
    assert bad.size == 0, f"O6: rows {bad.tolist()} differ by {worst[bad].tolist()}"


def check_same_rows(run: LoopRun, expected: LoopRun) -> None:
    """O2 and O6 against a run of the same tokens that check_teacher_forced() has passed."""
    assert run.text == expected.text
    np.testing.assert_array_equal(np.stack(run.rows), np.stack(expected.rows))


def check_fingerprint(got: Rows, expected: Rows, *, rtol: float = 0.0) -> None:
    """O4: rows of one (sequence, position) range equal those of single-token decodes.

    Args:
        got: [..., n_tokens, n_embd], by position.
        expected: the same, from forced_rows().
        rtol: the tolerance, relative to the largest expected number; 0 for bit-equal.

    """
    assert got.shape == expected.shape
    assert np.isfinite(got).all(), "O4: NaN or Inf in a row"
    limit = rtol * float(np.abs(expected).max())
    worst = np.abs(got.astype(np.float64) - expected).max(axis=-1)
    bad = np.argwhere(~(worst <= limit))
    assert bad.size == 0, f"O4: rows {bad.tolist()[:8]} differ by up to {worst.max()}"


@dataclass(frozen=True)
class ChildResult:
    """How a child process ended."""

    returncode: int
    stdout: str
    stderr: str


def run_child(code: str, *args: str) -> ChildResult:
    """O7: runs Python code in a child, with the fault handler on; `args` are its sys.argv[1:]."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", code, *args],
        capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)},
    )  # fmt: skip
    said = f"\n--- stdout\n{done.stdout}\n--- stderr\n{done.stderr}"
    assert done.returncode >= 0, f"O7: ended by signal {-done.returncode}{said}"
    assert done.returncode == 0, f"O7: exit code {done.returncode}{said}"
    return ChildResult(done.returncode, done.stdout, done.stderr)


def prompt_tokens(n: int, seed: int = 0, n_vocab: int = 256) -> list[int]:
    """Random ordinary ids: of the tiny vocabularies, the single bytes."""
    values = np.random.default_rng(seed).integers(0, n_vocab, size=n)
    return [int(value) for value in values]
