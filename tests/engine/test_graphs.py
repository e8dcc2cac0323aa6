"""A batch of a shape that was there reuses its graph."""

from __future__ import annotations

import random

from pyllama_spec.engine import Batch, Context
from tests.oracles import prompt_tokens, tiny, tiny_context


def decode(context: Context, tokens: list[int], at: int) -> None:
    """Decodes a run of tokens with all of their logits."""
    batch = Batch(len(tokens))
    batch.extend(tokens, at, output_all=True)
    context.decode(batch)


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
