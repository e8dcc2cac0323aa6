"""An untrained DFlash draft repeats what it sees again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from pyllama_spec.train.corpus.selection import Sample
from pyllama_spec.train.kinds.dflash import (
    DFlashHead,
    initialise,
    run_blocks,
    set_induction_heads,
)
from pyllama_spec.train.run.objective import count_accepted
from tests.train import test_dflash_head
from tests.train.chains import repeated_text
from tests.train.test_head import N_VOCAB, unit_sample, unit_weights

WIDTH = 256
SHAPE = replace(
    test_dflash_head.SHAPE, n_embd=WIDTH, n_draft_vocab=N_VOCAB, n_head_kv=4,
    target_layers=(1, 2),
)  # fmt: skip
Rows = npt.NDArray[np.float32]


@pytest.fixture
def head() -> DFlashHead:
    """A draft for random tokens, which have something in common as those of models do."""
    rng = np.random.default_rng(1)
    embedding = (rng.standard_normal((N_VOCAB, WIDTH)) + 0.5).astype(np.float32)
    output = rng.standard_normal((N_VOCAB, WIDTH)).astype(np.float32)
    made = DFlashHead(SHAPE, embedding, np.arange(N_VOCAB))
    initialise(made, unit_weights(embedding, output), unit_sample(2, WIDTH), 1)
    return made


def rows_of(head: DFlashHead, ids: npt.NDArray[np.int64]) -> tuple[Rows, Rows]:
    """A target whose first layer input is the token, and whose last one is what comes next."""
    output = head.weight("output.weight").detach().numpy()
    return head.embedding.numpy()[ids], 16 * output[np.roll(ids, -1)]


def first_picks(head: DFlashHead) -> float:
    """The share of first drafts that are right in the second half of a text that says it twice."""
    half = np.random.default_rng(7).permutation(256)[:60]
    ids = np.concatenate((half, half))
    texts = repeated_text(half, np.concatenate(rows_of(head, ids), axis=1))
    return float((count_accepted(head, run_blocks(head, texts), texts) > 0).float().mean())


def begin(head: DFlashHead, *, tells: bool = True) -> float:
    rng = np.random.default_rng(3)
    tokens = rng.integers(0, 256, 3000)
    first, last = rows_of(head, tokens)
    if not tells:
        first = rng.standard_normal(first.shape).astype(np.float32)
    seen = Sample(first, tokens, last, np.ones(2, np.float32), np.ones(2 * WIDTH, np.float32))
    return set_induction_heads(head, seen, np.ones(N_VOCAB, np.int64), 1)


def test_an_untrained_draft_repeats_what_it_sees_again(head: DFlashHead) -> None:
    before = first_picks(head)
    assert begin(head) > 0.5
    assert before < 0.15
    assert first_picks(head) > 0.6
