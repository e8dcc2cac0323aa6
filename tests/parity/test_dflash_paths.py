"""O3 for the paths of DFlash alone: other targets, causal blocks, windows of its layers.

For tests of every draft that reads rows, see test_row_draft_paths.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from pyllama_spec.drafters import DFlash
from pyllama_spec.engine import Batch
from pyllama_spec.speculative import SequenceState
from tests.dflash_tools import KINDS, Bench, Rows, cold_block, draft, opened, warm_block
from tests.eagle3_tools import Proposal, target_context
from tests.models import model_path
from tests.oracles import generate, prompt_tokens, sampled, tiny
from tests.row_drafts import ROW_DRAFTS

# Sampling at a high temperature: drafts of random weights are rejected at every place.
PARAMS = sampled(5, temperature=1.5)


@pytest.mark.parametrize("target", ["qwen3moe", "gemma3", "qwen35", "lfm2"])
def test_other_targets(target: str) -> None:
    """Scaled embeddings, positions of M-RoPE, and a state that cannot lose a token."""
    options: dict[str, Any] = {
        "target": model_path(target),
        "own_embedding": False,
        "own_output": False,
    }
    loop = opened(draft(**options), target, n_rs_seq=10)
    seq = SequenceState()
    run = generate(loop, seq, prompt_tokens(30), 60, PARAMS)
    assert 0 < run.stats.drafted > run.stats.accepted
    ROW_DRAFTS["dflash"].check_says_the_same(loop, seq)


@pytest.mark.parametrize("kind", KINDS)
def test_a_causal_block_has_causal_prefixes(kind: str) -> None:
    """Where no slot sees a later one, a short block equals the beginning of a long one."""
    loop, seq = opened(draft(causal=True, **KINDS[kind])), SequenceState()
    generate(loop, seq, prompt_tokens(30), 20, PARAMS)
    whole = warm_block(loop, seq, 5)
    assert whole[1].logits is not None
    for n in (4, 3, 2, 1):
        short = warm_block(loop, seq, n)
        assert short[0].ids == whole[0].ids[:n]
        assert short[0].probabilities == whole[0].probabilities[:n]
        assert short[1].candidates == whole[1].candidates[:n]
        assert np.array_equal(short[1].logits, whole[1].logits[:n])  # type: ignore[arg-type]


def test_a_block_that_sees_both_ways_has_not() -> None:
    loop, seq = opened(draft()), SequenceState()
    generate(loop, seq, prompt_tokens(30), 20, PARAMS)
    whole, short = warm_block(loop, seq, 5), warm_block(loop, seq, 3)
    assert short[0].probabilities != whole[0].probabilities[:3]


@pytest.mark.parametrize("window", [8, 30, 64])
def test_a_window(window: int) -> None:
    """A draft with a window equals a draft that was given the window alone."""
    drafter = draft(n_ctx=window)
    loop, seq = opened(drafter), SequenceState()
    generate(loop, seq, prompt_tokens(90), 40, PARAMS)
    got = warm_block(loop, seq, 5)[0]
    assert drafter.context is not None
    first, last = drafter.context.memory.positions(0)
    assert 0 < first <= last + 2 - window * 3 // 4
    expected = block_after(drafter, seq.tokens, first)
    # The window's cells are reused, so that sums over them have another order.
    assert got.ids == expected.ids
    assert got.probabilities == pytest.approx(expected.probabilities, rel=1e-3)


def block_after(drafter: DFlash, text: Sequence[int], first: int) -> Proposal:
    """The block of a draft with the rows of a text from a position on."""
    parts: list[list[Rows]] = []
    with target_context(tiny("llama"), drafter) as context:
        batch = Batch(len(text))
        for i in range(0, len(text) - 1, 64):
            batch.clear()
            batch.extend(text[i : min(i + 64, len(text) - 1)], i)
            context.decode(batch)
            parts.append([context.layer_input(layer).copy() for layer in drafter.target_layers])
    whole = [np.concatenate(layer)[first:] for layer in zip(*parts, strict=True)]
    with Bench(drafter.model.path) as bench:
        bench.inject(np.concatenate(whole, axis=1), first)
        found = bench.guess(text[-1], 5, len(text) - 1)
    return Proposal(tuple(found.ids), tuple(found.probabilities))


@pytest.mark.parametrize("kind", KINDS)
def test_a_sliding_window_is_all_that_is_kept(kind: str) -> None:
    """No layer sees the dropped rows: the draft equals one with all rows."""
    drafter = draft(sliding_window=24, **KINDS[kind])
    loop, seq = opened(drafter), SequenceState()
    for prompt, n in ((prompt_tokens(20), 30), (prompt_tokens(150, seed=2), 60)):
        generate(loop, seq, prompt, n, PARAMS)
        got, expected = warm_block(loop, seq, 5), cold_block(tiny("llama"), drafter, seq.tokens, 5)
        assert drafter.context is not None
        first, last = drafter.context.memory.positions(0)
        assert first > 0
        assert 23 <= last + 1 - first <= 24 * 8 // 7 + 9
        assert got[0].ids == expected[0].ids
        assert got[0].probabilities == pytest.approx(expected[0].probabilities, rel=1e-3)


@pytest.mark.parametrize("cut", [1, 20, 80, 150])
def test_a_prefix_shorter_than_what_a_window_forgot(cut: int) -> None:
    drafter = draft(sliding_window=24)
    loop, seq = opened(drafter), SequenceState()
    run = generate(loop, seq, prompt_tokens(120), 60, PARAMS)
    # After a small cut a few rows may be missing, until as many came. After a large one, when all
    # would be, the target makes them again.
    kept = run.text[: len(run.text) - cut]
    run = generate(loop, seq, kept + prompt_tokens(30 if cut < 24 else 2, seed=8), 3, PARAMS)
    assert run.stats.reason_off is None
    got, expected = warm_block(loop, seq, 5), cold_block(tiny("llama"), drafter, seq.tokens, 5)
    assert got[0].ids == expected[0].ids
    assert got[0].probabilities == pytest.approx(expected[0].probabilities, rel=1e-3)


@pytest.mark.parametrize("kind", ["dspark", "dspark, no anchor"])
def test_p_min_counts_confidences(kind: str) -> None:
    drafter = draft(**KINDS[kind])
    loop, seq = opened(drafter), SequenceState()
    generate(loop, seq, prompt_tokens(40), 10, PARAMS)
    found, block = warm_block(loop, seq, 5)
    assert block.confidences is not None
    assert list(found.probabilities) == block.confidences != block.probabilities
    other = draft(**KINDS[kind], confidence=False)
    loop, seq = opened(other), SequenceState()
    generate(loop, seq, prompt_tokens(40), 10, PARAMS)
    found, block = warm_block(loop, seq, 5)
    assert block.confidences is None
    assert list(found.probabilities) == block.probabilities
