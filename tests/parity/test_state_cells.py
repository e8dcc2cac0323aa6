"""A sequence in a cell with another text's recurrent state starts from nothing."""

from __future__ import annotations

import numpy as np
import pytest

from pyllama_spec.engine import Batch, Context
from pyllama_spec.errors import ArgumentError, CancelledError
from tests.models import STATES
from tests.oracles import tiny
from tests.tiers import release_except

_QUICK = ("qwen35", "mamba2", "lfm2")
# Rows of a unified cache are equal to rounding; a state of another text is off by whole numbers.
_CLOSE = 2e-3


class _Texts:
    def __init__(self, context: Context) -> None:
        self._context, self._rng = context, np.random.default_rng(7)
        self.texts: dict[int, list[int]] = {}

    def decode(self, **lengths: int) -> None:
        batch, rows = Batch(64), {}
        for name, n in lengths.items():
            seq = int(name[1:])
            text = self.texts.setdefault(seq, [])
            new = self._rng.integers(3, 300, n).tolist()
            batch.extend(new, len(text), seq=seq, output_last=True)
            text += new
            rows[seq] = batch.n_tokens - 1
        self._context.decode(batch)
        for seq, row in rows.items():
            found, alone = np.array(self._context.logits(row)), self._alone(seq)
            assert np.abs(found - alone).max() < _CLOSE * np.abs(alone).max(), (seq, lengths)

    def remove(self, seq: int) -> None:
        self._context.memory.remove(seq)
        del self.texts[seq]

    def fork(self, seq: int, to: int) -> None:
        self._context.memory.remove(to)
        self._context.memory.copy(seq, to)
        self.texts[to] = list(self.texts[seq])

    def _alone(self, seq: int) -> np.ndarray:
        with Context(self._context.model, n_ctx=64, n_threads=1) as context:
            batch = Batch(64)
            batch.extend(self.texts[seq], 0, output_last=True)
            context.decode(batch)
            return np.array(context.logits(batch.n_tokens - 1))


@pytest.mark.parametrize("n_rs_seq", [0, 8])
@pytest.mark.parametrize("arch", release_except(STATES, _QUICK))
def test_a_cell_between_others_is_cleared(arch: str, n_rs_seq: int) -> None:
    """The cell of an empty sequence is inside the range of a batch without its tokens."""
    with Context(
        tiny(arch), n_ctx=256, n_seq_max=4, n_rs_seq=n_rs_seq, n_threads=1, kv_unified=True
    ) as context:
        texts = _Texts(context)
        texts.decode(s0=3, s1=3, s2=5, s3=3)
        texts.remove(2)
        texts.decode(s0=1, s3=1)
        texts.decode(s2=4)


@pytest.mark.parametrize("arch", release_except(STATES, _QUICK))
def test_a_cell_that_a_fork_left_is_cleared(arch: str) -> None:
    with Context(tiny(arch), n_ctx=256, n_seq_max=4, n_rs_seq=8, n_threads=1) as context:
        texts = _Texts(context)
        texts.decode(s0=5, s2=5, s3=5)
        texts.fork(0, 2)
        texts.decode(s0=2)
        texts.decode(s2=5, s3=5)
        texts.decode(s1=1)


@pytest.mark.parametrize("kv_unified", [False, True])
@pytest.mark.parametrize("arch", release_except(STATES, _QUICK))
def test_a_cancelled_decode_harms_no_other_sequence(arch: str, kv_unified: bool) -> None:
    """A cancelled decode swaps cells; the sequence whose state was lost gets an error."""
    with Context(
        tiny(arch), n_ctx=256, n_seq_max=4, n_rs_seq=8, n_threads=1, kv_unified=kv_unified
    ) as context:
        texts = _Texts(context)
        texts.decode(s0=4, s2=3)
        texts.fork(0, 1)
        texts.decode(s0=1)
        context.cancel()
        with pytest.raises(CancelledError):
            texts.decode(s1=1, s2=1)
        context.cancel(False)
        if context.memory.positions(0)[1] < 0:
            with pytest.raises(ArgumentError, match="follows nothing: sequence 0 is empty"):
                texts.decode(s0=1)
            texts.remove(0)
            texts.decode(s0=6)
        else:
            texts.decode(s0=1)


@pytest.mark.parametrize("what", ["copy", "source", "empty"])
@pytest.mark.parametrize("arch", ["llama", *release_except(STATES, ("jamba", "qwen35"))])
def test_what_is_restored_after_a_fork_stays(arch: str, what: str) -> None:
    """With separate streams, the engine copies keys and values only at the next decode."""
    with Context(tiny(arch), n_ctx=256, n_seq_max=4, n_rs_seq=0, n_threads=1) as context:
        texts = _Texts(context)
        texts.decode(s0=5, s3=7)
        saved = context.memory.save(3)
        if what == "empty":
            context.memory.copy(2, 1)
        else:
            texts.fork(0, 1)
        to = 0 if what == "source" else 1
        context.memory.remove(to)
        context.memory.restore(to, saved)
        texts.texts[to] = list(texts.texts[3])
        texts.decode(**{f"s{to}": 2})
        if what == "source":
            texts.decode(s1=2)


@pytest.mark.parametrize(("n_seqs", "n_ubatch"), [(3, 512), (5, 64), (7, 4)])
def test_any_number_of_sequences_can_be_opened(n_seqs: int, n_ubatch: int) -> None:
    """The graph's sequences are divided evenly by the engine's streams."""
    with Context(
        tiny("kimi-linear"), n_ctx=64 * n_seqs, n_seq_max=n_seqs, n_ubatch=n_ubatch, n_threads=1
    ) as context:
        texts = _Texts(context)
        texts.decode(s0=3, s2=2)
        texts.decode(s0=1, s1=1, s2=1)
