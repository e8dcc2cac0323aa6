"""Heads that copy before any training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from pyllama_spec.engine import Model
from pyllama_spec.train.corpus.features import LiveFeatures
from pyllama_spec.train.corpus.store import TextSequence
from pyllama_spec.train.kinds.eagle3 import Eagle3Head, initialise, set_induction_heads
from pyllama_spec.train.run.chains import run_chains
from pyllama_spec.train.run.target_weights import read_weights
from tests.models import model_path
from tests.train.chains import repeated_text
from tests.train.test_head import N_VOCAB, SHAPE

LAYERS, WIDTH = (0, 2, 3), 256
BASE = replace(
    SHAPE, target_layers=LAYERS, n_embd=WIDTH, n_embd_target=WIDTH, n_head_kv=4,
    n_draft_vocab=N_VOCAB,
)  # fmt: skip
SHAPES = {"eagle-3.1": BASE, "plain": replace(BASE, fc_norm=False, norm_output=False)}
Rows = npt.NDArray[np.float32]


def target() -> Path:
    """Heads of 64 numbers, wide enough to tell tokens apart."""
    return model_path("llama", n_embd=WIDTH)


def untrained(name: str) -> Eagle3Head:
    path = target()
    with Model(path) as model:
        weights = read_weights(path, model.info)
    head = Eagle3Head(SHAPES[name], weights.embedding, np.arange(N_VOCAB))
    # As where embedding and output are one: random ones have nothing in common.
    _, rows = texts_and_rows(4, 64)
    parts = np.concatenate(rows).reshape(-1, len(LAYERS), WIDTH)
    rms = np.sqrt(np.square(parts).mean(axis=(0, 2)))
    initialise(head, weights.embedding, None, rms, 1)
    return head


def texts_and_rows(n_texts: int, length: int) -> tuple[list[npt.NDArray[np.int64]], list[Rows]]:
    """Random tokens with the target's rows of them."""
    rng = np.random.default_rng(3)
    tokens = [rng.integers(0, 256, length) for _ in range(n_texts)]
    with Model(target()) as model:
        live = LiveFeatures(model, LAYERS, 1, length, 1)
        rows = []
        for ids in tokens:
            mask = np.zeros(length, np.bool_)
            rows.append(live.of(TextSequence(0, ids.astype(np.uint32), mask, True)).rows)
        live.close()
    return tokens, [row.astype(np.float32) for row in rows]


def right_after_a_repetition(head: Eagle3Head) -> float:
    """The share of first drafts that are right in the second half of a text that says it twice."""
    half = np.random.default_rng(7).permutation(256)[:60]
    ids = np.concatenate((half, half))
    with Model(target()) as model:
        live = LiveFeatures(model, LAYERS, 1, len(ids), 1)
        sequence = TextSequence(0, ids.astype(np.uint32), np.zeros(len(ids), np.bool_), True)
        rows = live.of(sequence).rows.astype(np.float32)
        live.close()
    texts = repeated_text(half, rows)
    with torch.no_grad():
        step = next(run_chains(head, texts, 1))
        picked = head.d2t[head.logits(step.y).argmax(-1)]
    return float((picked == texts.tokens[step.at + 1]).float().mean())


@pytest.mark.parametrize("name", SHAPES)
def test_an_untrained_head_repeats_what_it_sees_again(name: str) -> None:
    head = untrained(name)
    before = right_after_a_repetition(head)
    tokens, rows = texts_and_rows(40, 64)
    first = np.concatenate(rows)[:, :WIDTH]
    counts = np.ones(N_VOCAB, np.int64)
    told = set_induction_heads(head, first, np.concatenate(tokens), counts, 1)
    assert told > 0.5
    assert before < 0.15
    assert right_after_a_repetition(head) > 0.6


def test_nothing_changes_where_rows_do_not_tell_their_token() -> None:
    head = untrained("eagle-3.1")
    before = {name: value.copy() for name, value in head.tensors().items()}
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((2000, WIDTH)).astype(np.float32)
    tokens = rng.integers(0, 256, 2000)
    assert set_induction_heads(head, rows, tokens, np.ones(N_VOCAB, np.int64), 1) < 0.5
    assert all(np.array_equal(before[name], value) for name, value in head.tensors().items())


def test_grouped_heads_are_left_alone() -> None:
    path = target()
    with Model(path) as model:
        weights = read_weights(path, model.info)
    head = Eagle3Head(replace(BASE, n_head_kv=2), weights.embedding, np.arange(N_VOCAB))
    initialise(head, weights.output, weights.output_norm, np.ones(3, np.float32), 1)
    tokens, rows = texts_and_rows(4, 64)
    counts = np.ones(N_VOCAB, np.int64)
    first = np.concatenate(rows)[:, :WIDTH]
    assert set_induction_heads(head, first, np.concatenate(tokens), counts, 1) == 0.0
