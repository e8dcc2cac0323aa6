"""Recurrent states after random rounds are those of a fresh context: of each architecture."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from pyllama_spec.engine import Batch, Context, Model
from pyllama_spec.errors import CancelledError
from pyllama_spec.speculative import SequenceState
from pyllama_spec.speculative.rollback import Rollback, StateRollback, rollback_of
from tests.models import STATES, STATES_WITHOUT_SNAPSHOTS, model_path
from tests.oracles import Rows, forced_rows, tiny
from tests.tiers import release_except

MAX_DRAFT = 8
MAX_TEXT = 48


class RandomRounds:
    """Up to eight sequences of a context.

    Attributes:
        worst: the largest difference of any compared row.
        n_rows: the number of compared rows.
        counts: the number of rounds of each kind.

    """

    def __init__(
        self, context: Context, rollback: Rollback, seed: int, max_draft: int = MAX_DRAFT
    ) -> None:
        self.context, self.rollback, self.max_draft = context, rollback, max_draft
        self.rng = random.Random(seed)
        self.states = [SequenceState(seq) for seq in range(context.n_seq_max)]
        self.rows: list[dict[int, Rows]] = [{} for _ in self.states]
        self.worst, self.n_rows = 0.0, 0
        self.counts: dict[str, int] = {}
        self._batch = Batch(context.n_batch)

    def run(self, n_rounds: int) -> None:
        """So many rounds, each of a few of the sequences; then everything is compared."""
        for _ in range(n_rounds):
            n = self.rng.choice([1, 1, 2, 3, len(self.states)])
            chosen = sorted(self.rng.sample(range(len(self.states)), min(n, len(self.states))))
            for seq in chosen:
                self._make_ready(self.states[seq])
            self._round([self.states[seq] for seq in chosen])
        for state in self.states:
            self._compare(state)

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def _ids(self, n: int) -> list[int]:
        n_vocab = self.context.model.info.n_vocab
        return [self.rng.randrange(n_vocab) for _ in range(n)]

    def _draft(self) -> list[int]:
        return self._ids(min(self.rng.choice([0, 0, 1, 2, 4, self.max_draft]), self.max_draft))

    def _make_ready(self, state: SequenceState) -> None:
        """A prompt for a sequence that has no text, or too long a one; what was lost is read."""
        if len(state.tokens) > MAX_TEXT:
            self._compare(state)
            self.rollback.forget(state)
        is_new = not state.tokens
        if is_new:
            state.tokens = self._ids(self.rng.randrange(2, 12))
            self.rows[state.seq_id] = {}
        lost = state.tokens[state.n_decoded : -1]
        if lost:
            self._batch.clear()
            self._batch.extend(lost, state.n_decoded, state.seq_id, output_last=True)
            self.context.decode(self._batch)
            self._keep_row(state, state.n_decoded + len(lost) - 1, len(lost) - 1)
            state.n_decoded += len(lost)
        if is_new:
            self.rollback.mark(state)

    def _keep_row(self, state: SequenceState, position: int, row: int) -> None:
        self.rows[state.seq_id][position] = self.context.logits(row).copy()

    def _compare(self, state: SequenceState) -> None:
        """The rows of a text with those of a fresh context."""
        kept = self.rows[state.seq_id]
        if kept:
            expected = forced_rows(self.context.model, state.tokens[: max(kept) + 1])[0]
            scale = max(float(np.abs(expected).max()), 1.0)
            for position, row in kept.items():
                difference = np.abs(row - expected[position]).max() / scale
                self.worst = max(self.worst, float(difference))
                assert np.isfinite(row).all()
            self.n_rows += len(kept)

    def _round(self, states: Sequence[SequenceState]) -> None:
        drafts = [self._draft() for _ in states]
        self._batch.clear()
        first_rows = []
        for state, draft in zip(states, drafts, strict=True):
            first_rows.append(self._batch.n_tokens)
            tokens = [state.tokens[-1], *draft]
            self._batch.extend(tokens, state.n_decoded, state.seq_id, output_all=True)
        if self.rng.random() < 0.05:
            self._cancel(states)
            return
        self.context.decode(self._batch)
        for state, draft, row in zip(states, drafts, first_rows, strict=True):
            n = self.rng.randrange(len(draft) + 1)
            self._count("draft" if draft else "no draft")
            for i in range(n + 1):
                self._keep_row(state, state.n_decoded + i, row + i)
            state.tokens += [*draft[:n], *self._ids(1)]
            state.n_decoded += 1 + n
            if n < len(draft):
                self.rollback.undo(state)
        for state, draft in zip(states, drafts, strict=True):
            self._go_further_back(state, len(draft))

    def _cancel(self, states: Sequence[SequenceState]) -> None:
        self._count("cancelled")
        self.context.cancel()
        try:
            self.context.decode(self._batch)
        except CancelledError:
            pass
        else:
            raise AssertionError("the decode was not cancelled")
        finally:
            self.context.cancel(False)
        for state in states:
            self.rollback.recover(state)

    def _go_further_back(self, state: SequenceState, n_draft: int) -> None:
        """Now and then: back again, within the round, before it or to the end of the prompt."""
        if self.rng.random() > 0.15:
            return
        n_keep = max(state.n_decoded - self.rng.choice([1, 2, 1 + n_draft, 20]), 1)
        if n_keep >= state.n_decoded:
            return
        self._compare(state)
        n_held = self.rollback.keep(state, n_keep)
        kind = "all lost" if not n_held else "again" if n_held == n_keep else "checkpoint"
        self._count(kind)
        if not n_held:
            self.context.memory.remove(state.seq_id)
        state.n_decoded = n_held
        state.tokens = [*state.tokens[:n_keep], *self._ids(1)]
        rows = self.rows[state.seq_id]
        self.rows[state.seq_id] = {at: row for at, row in rows.items() if at < n_keep}


def rounds_context(model: Model, n_seqs: int, **overrides: object) -> Context:
    values: dict[str, object] = {
        "n_ctx": 128 * n_seqs, "n_batch": 128, "n_ubatch": 96, "n_seq_max": n_seqs,
        "n_rs_seq": MAX_DRAFT, "n_threads": 1,
    }  # fmt: skip
    return Context(model, **{**values, **overrides})  # type: ignore[arg-type]


QUICK = ("qwen35", "mamba2")
SNAPSHOTS = [arch for arch in STATES if arch not in STATES_WITHOUT_SNAPSHOTS]


@pytest.mark.parametrize("n_seqs", [1, 3, 8])
@pytest.mark.parametrize("arch", release_except(SNAPSHOTS, QUICK))
def test_states_after_random_rounds(arch: str, n_seqs: int) -> None:
    """By snapshots, none of which goes to the host."""
    with rounds_context(tiny(arch), n_seqs) as context:
        rounds = RandomRounds(context, rollback_of(context), seed=n_seqs)
        rounds.run(200)
        assert rounds.worst == 0.0
        assert rounds.n_rows > 150
        wanted = {"draft", "no draft", "cancelled", "checkpoint", "again"}
        assert wanted <= set(rounds.counts), rounds.counts
        context.memory.clear()
        rollback = StateRollback(context)
        rollback.n_checkpoints = 0
        rounds = RandomRounds(context, rollback, seed=2)
        n_copies = context.memory.n_host_copies
        rounds.run(100)
        assert rounds.worst == 0.0
        assert context.memory.n_host_copies == n_copies


def _shape(arch: str, rng: random.Random) -> dict[str, int]:
    """Sizes of recurrent layers, some of them no multiple of a vector."""
    wide = arch in ("plamo2", "kimi-linear")  # other widths were not tried
    return {
        "seed": rng.randrange(100),
        "n_layer": rng.choice([2, 4, 6]) if arch != "nemotron_h" else rng.choice([4, 8]),
        "state_size": rng.choice([16, 32]) if wide else rng.choice([8, 12, 16, 24, 32, 48, 64]),
        "state_heads": rng.choice([2, 4, 8]),
        "conv_kernel": rng.choice([3, 4, 5]),
    }


@pytest.mark.parametrize("draw", range(3))
@pytest.mark.parametrize("arch", release_except(SNAPSHOTS, ("qwen35", "mamba2", "mamba")))
def test_states_of_random_shapes(arch: str, draw: int) -> None:
    rng = random.Random(f"{arch} {draw}")
    n_seqs = rng.randrange(1, 9)
    with (
        Model(model_path(arch, **_shape(arch, rng))) as model,
        rounds_context(model, n_seqs, n_rs_seq=rng.randrange(1, 11)) as context,
    ):
        rollback = rollback_of(context)
        rounds = RandomRounds(context, rollback, seed=draw, max_draft=context.n_rs_seq)
        rounds.run(70)
        assert rounds.worst == 0.0
        assert rounds.n_rows > 40
