"""Graphs cached by batch shape give the rows of a context with one graph."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from pyllama_spec.engine import Batch, Context
from tests.oracles import Rows, forced_rows, prompt_tokens, tiny, tiny_context

ARCHS = ("llama", "gemma3", "deepseek2", "qwen35", "lfm2", "mamba2")
# More than there are places, so that some are given up, and batches beyond the widest.
WIDTHS = (1, 5, 2, 1, 9, 3, 33, 4, 6, 7, 1, 8, 10, 40, 11, 1, 5)


def decode(context: Context, tokens: Sequence[int], at: int, seq: int = 0) -> Rows:
    """The logits of all of a run of tokens."""
    batch = Batch(len(tokens))
    batch.extend(list(tokens), at, seq, output_all=True)
    context.decode(batch)
    return np.stack([context.logits(i).copy() for i in range(len(tokens))])


@pytest.mark.parametrize("arch", ARCHS)
def test_rows_of_all_widths(arch: str) -> None:
    text = prompt_tokens(sum(WIDTHS), seed=7)
    with tiny_context(tiny(arch), n_ctx=256) as context:
        decoded, at = [], 0
        for width in WIDTHS:
            decoded.append(decode(context, text[at : at + width], at))
            at += width
    with tiny_context(tiny(arch), n_ctx=256) as context:
        at = 0
        for width, rows in zip(WIDTHS, decoded, strict=True):
            # A context that has seen no other width: forgotten and read again in the same pieces.
            expected = decode(context, text[at : at + width], at)
            assert np.array_equal(rows, expected)
            at += width
    expected = forced_rows(tiny(arch), text)[0]
    assert float(np.abs(np.concatenate(decoded) - expected).max()) < 1e-4


def test_a_width_that_was_there_finds_its_graph() -> None:
    rng = random.Random(1)
    text = prompt_tokens(200, seed=3)
    with tiny_context(tiny("llama"), n_ctx=256) as context:
        decode(context, text[:20], 0)
        for width in range(1, 10):
            decode(context, text[20 : 20 + width], 20)
            context.memory.rollback(0, 20)
        before = context.n_graphs_reused
        for _ in range(30):
            n = rng.randint(1, 9)
            decode(context, text[20 : 20 + n], 20)
            context.memory.rollback(0, 20)
        assert context.n_graphs_reused == before + 30


def test_the_memory_changes_in_between() -> None:
    """Rows stay right after a copy of a sequence, which the engine computes in another graph."""
    text = prompt_tokens(60, seed=5)
    with tiny_context(tiny("llama"), n_ctx=256, n_seq_max=2) as context:
        decode(context, text[:10], 0)
        decode(context, text[10:13], 10)
        context.memory.copy(0, 1)
        one = decode(context, text[13:16], 13, 0)
        two = decode(context, text[13:16], 13, 1)
        assert np.array_equal(one, two)
        assert np.array_equal(one, forced_rows(context.model, text[:16])[0][-3:])
