"""Heads that copy before any training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from pyllama_spec.engine import Model
from pyllama_spec.train.corpus.features import LiveFeatures
from pyllama_spec.train.corpus.selection import Sample
from pyllama_spec.train.corpus.store import TextSequence
from pyllama_spec.train.kinds.eagle3 import Eagle3Head, initialise, set_induction_heads
from pyllama_spec.train.run.chains import run_chains
from pyllama_spec.train.run.objective import count_accepted
from tests.models import model_path
from tests.train.chains import repeated_text
from tests.train.test_head import N_VOCAB, SHAPE, unit_sample, unit_weights, weights_of

LAYERS, WIDTH = (0, 2, 3), 256
BASE = replace(
    SHAPE, target_layers=LAYERS, n_embd=WIDTH, n_head_kv=4,
    n_draft_vocab=N_VOCAB,
)  # fmt: skip
SHAPES = {"eagle-3.1": BASE, "plain": replace(BASE, is_plain=True)}
Rows = npt.NDArray[np.float32]


def target() -> Path:
    """Heads of 64 numbers, wide enough to tell tokens apart."""
    return model_path("llama", n_embd=WIDTH)


def untrained(name: str) -> Eagle3Head:
    weights = weights_of(target())
    head = Eagle3Head(SHAPES[name], weights.embedding, np.arange(N_VOCAB))
    # As where embedding and output are one: random ones have nothing in common.
    _, rows = texts_and_rows(4, 64)
    parts = np.concatenate(rows).reshape(-1, len(LAYERS), WIDTH)
    rms = np.sqrt(np.square(parts).mean(axis=(0, 2)))
    seen = replace(unit_sample(len(LAYERS)), rms=rms)
    initialise(head, unit_weights(weights.embedding, weights.embedding), seen, 1)
    return head


def texts_and_rows(n_texts: int, length: int) -> tuple[list[npt.NDArray[np.int64]], list[Rows]]:
    """Random tokens with the target's rows of them."""
    rng = np.random.default_rng(3)
    tokens = [rng.integers(0, 256, length) for _ in range(n_texts)]
    return tokens, rows_of(tokens)


def rows_of(texts: list[npt.NDArray[np.int64]]) -> list[Rows]:
    """The target's rows of some tokens."""
    with Model(target()) as model:
        live = LiveFeatures(model, LAYERS, 1, 120, 1)
        sequences = [
            TextSequence(0, ids.astype(np.uint32), np.zeros(len(ids), np.bool_), True)
            for ids in texts
        ]
        rows = [live.of(sequence).rows.astype(np.float32) for sequence in sequences]
        live.close()
    return rows


def right_after_a_repetition(head: Eagle3Head) -> float:
    """The share of first drafts that are right in the second half of a text that says it twice."""
    half = np.random.default_rng(7).permutation(256)[:60]
    texts = repeated_text(half, rows_of([np.concatenate((half, half))])[0])
    return float(count_accepted(head, run_chains(head, texts, 1), texts).float().mean())


def begin(head: Eagle3Head, rows: Rows, tokens: npt.NDArray[np.int64]) -> float:
    one = np.ones(len(LAYERS) * WIDTH, np.float32)
    seen = Sample(rows, tokens, rows, one[: len(LAYERS)], one)
    return set_induction_heads(head, seen, np.ones(N_VOCAB, np.int64), 1)


@pytest.mark.parametrize("name", SHAPES)
def test_an_untrained_head_repeats_what_it_sees_again(name: str) -> None:
    head = untrained(name)
    before = right_after_a_repetition(head)
    tokens, rows = texts_and_rows(40, 64)
    told = begin(head, np.concatenate(rows)[:, :WIDTH], np.concatenate(tokens))
    assert told > 0.5
    assert before < 0.15
    assert right_after_a_repetition(head) > 0.6


def test_nothing_changes_where_rows_do_not_tell_their_token() -> None:
    head = untrained("eagle-3.1")
    before = {name: value.copy() for name, value in head.tensors().items()}
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((2000, WIDTH)).astype(np.float32)
    tokens = rng.integers(0, 256, 2000)
    assert begin(head, rows, tokens) < 0.5
    assert all(np.array_equal(before[name], value) for name, value in head.tensors().items())
