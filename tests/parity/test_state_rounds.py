"""Recurrent states after random rounds are those of a fresh context: of each architecture."""

from __future__ import annotations

import random
import struct

import pytest

from pyllama_spec.engine import Model
from pyllama_spec.errors import UnsupportedError
from pyllama_spec.speculative import SequenceState
from pyllama_spec.speculative.rollback import (
    ReplayRollback,
    Rollback,
    SnapshotRollback,
    rollback_of,
)
from tests.models import STATES, STATES_WITHOUT_SNAPSHOTS, model_path
from tests.oracles import tiny
from tests.parity.state_rounds import MAX_DRAFT, RandomRounds, rounds_context
from tests.tiers import release_except

NATIVE = tuple(arch for arch in STATES if arch not in STATES_WITHOUT_SNAPSHOTS)
QUICK = ("qwen35", "mamba2", "rwkv7")


@pytest.mark.parametrize("n_seqs", [1, 3, 8])
@pytest.mark.parametrize("arch", release_except(STATES, QUICK))
def test_states_after_random_rounds(arch: str, n_seqs: int) -> None:
    with rounds_context(tiny(arch), n_seqs) as context:
        rollback = rollback_of(context)
        kind = ReplayRollback if arch in STATES_WITHOUT_SNAPSHOTS else SnapshotRollback
        assert type(rollback) is kind
        rounds = RandomRounds(context, rollback, seed=n_seqs)
        rounds.run(200)
        assert rounds.worst == 0.0
        assert rounds.n_rows > 150
        wanted = {"draft", "no draft", "cancelled", "again", "checkpoint"}
        if kind is ReplayRollback:
            wanted -= {"again"}
        assert wanted <= set(rounds.counts), rounds.counts


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
@pytest.mark.parametrize("arch", release_except(STATES, ("qwen35", "mamba2", "mamba")))
def test_states_of_random_shapes(arch: str, draw: int) -> None:
    rng = random.Random(f"{arch} {draw}")
    n_seqs = rng.randrange(1, 9)
    with (
        Model(model_path(arch, **_shape(arch, rng))) as model,
        rounds_context(model, n_seqs, n_rs_seq=rng.randrange(1, 11)) as context,
    ):
        rollback = rollback_of(context)
        rounds = RandomRounds(context, rollback, seed=draw, max_draft=context.n_rs_seq or MAX_DRAFT)
        rounds.run(70)
        assert rounds.worst == 0.0
        assert rounds.n_rows > 40


@pytest.mark.parametrize("arch", release_except(STATES, QUICK))
def test_states_of_a_context_without_snapshots(arch: str) -> None:
    """The same by copies and replays, if the context has no snapshots."""
    with rounds_context(tiny(arch), 3, n_rs_seq=0) as context:
        rollback = rollback_of(context)
        assert type(rollback) is ReplayRollback
        rounds = RandomRounds(context, rollback, seed=5)
        rounds.run(200)
        assert rounds.worst == 0.0


@pytest.mark.parametrize("arch", release_except(NATIVE, QUICK))
def test_no_state_goes_to_the_host_in_rounds(arch: str) -> None:
    with rounds_context(tiny(arch), 4) as context:
        rounds = RandomRounds(context, SnapshotRollback(context, n_checkpoints=0), seed=2)
        rounds.run(200)
        assert rounds.worst == 0.0
        assert context.memory.n_host_copies == 0


class OneDeeper(SnapshotRollback):
    """A wrong promotion: the state of one token earlier, at the right position."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.n_planted = 0

    def undo(self, state: SequenceState) -> None:
        """Takes the plane after the right one."""
        memory = self._target.memory
        super().undo(state)
        try:
            wrong = bytearray(memory.checkpoint(state.seq_id, back=1))
        except UnsupportedError:  # the batch wrote no deeper plane
            return
        # The count of cells and the cell's position lie side by side near the beginning.
        at = wrong.index(struct.pack("<Ii", 1, state.n_decoded - 2), 0, 64)
        struct.pack_into("<i", wrong, at + 4, state.n_decoded - 1)
        memory.return_to(state.seq_id, memoryview(wrong), state.n_decoded)
        self.n_planted += 1


@pytest.mark.parametrize("arch", release_except(NATIVE, QUICK))
def test_a_wrong_promotion_is_caught(arch: str) -> None:
    with rounds_context(tiny(arch), 2) as context:
        rollback: Rollback = OneDeeper(context, 3)
        rounds = RandomRounds(context, rollback, seed=2)
        rounds.run(60)
        assert isinstance(rollback, OneDeeper)
        assert rollback.n_planted > 5
        assert rounds.worst > 1e-4
