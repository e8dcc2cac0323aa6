"""DFlash alone: other targets, causal blocks, windows of its layers, blocks of every length.

For tests of every draft that reads rows, see test_row_draft_paths.py and _acceptance.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pyllama_spec.drafters import DFlash
from pyllama_spec.speculative import SequenceState
from tests.dflash_tools import KINDS, block_of, draft, opened
from tests.models import model_path
from tests.oracles import generate, prompt_tokens, sampled, tiny
from tests.row_drafts import PATHS, ROW_DRAFTS, Way, check_perfect

# Sampling at a high temperature: drafts of random weights are rejected at every place.
PARAMS = sampled(5, temperature=1.5)
KIND = ROW_DRAFTS["dflash"]


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
    KIND.check_says_the_same(loop, seq)


@pytest.mark.parametrize("kind", KINDS)
def test_a_causal_block_has_causal_prefixes(kind: str) -> None:
    """Where no slot sees a later one, a short block equals the beginning of a long one."""
    drafter, seq = draft(causal=True, **KINDS[kind]), SequenceState()
    generate(opened(drafter), seq, prompt_tokens(30), 20, PARAMS)
    whole = block_of(drafter, 0, seq.tokens, 5)
    assert whole[1].logits is not None
    for n in (4, 3, 2, 1):
        short = block_of(drafter, 0, seq.tokens, n)
        assert short[0].ids == whole[0].ids[:n]
        assert short[0].probabilities == whole[0].probabilities[:n]
        assert short[1].candidates == whole[1].candidates[:n]
        assert np.array_equal(short[1].logits, whole[1].logits[:n])  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_a_sliding_window_is_all_that_is_kept(kind: str) -> None:
    """No layer sees the dropped rows: the draft equals one with all rows."""
    drafter = draft(sliding_window=24, **KINDS[kind])
    loop, seq = opened(drafter), SequenceState()
    for prompt, n in ((prompt_tokens(20), 30), (prompt_tokens(150, seed=2), 60)):
        generate(loop, seq, prompt, n, PARAMS)
        got = block_of(drafter, 0, seq.tokens, 5)[0]
        expected = KIND.cold(tiny("llama"), drafter, seq.tokens, 5).proposal
        assert drafter.context is not None
        first, last = drafter.context.memory.positions(0)
        assert first > 0
        assert 23 <= last + 1 - first <= 24 * 8 // 7 + 9
        assert got.ids == expected.ids
        assert got.probabilities == pytest.approx(expected.probabilities, rel=1e-3)


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
    got = block_of(drafter, 0, seq.tokens, 5)[0]
    expected = KIND.cold(tiny("llama"), drafter, seq.tokens, 5).proposal
    assert got.ids == expected.ids
    assert got.probabilities == pytest.approx(expected.probabilities, rel=1e-3)


# ---- PERM: each draft reads the next tokens from several rows


def perm(**options: Any) -> Any:
    return KIND.open(KIND.perm_path(**options))


@pytest.mark.parametrize("path", PATHS)
def test_all_of_a_spread_is_accepted(path: Way) -> None:
    path(KIND, lambda: perm(read="spread"))


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("off", [-1, 1])
def test_each_path_sees_another_layer(path: Way, off: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The target's layers say different things, and the layer ids are off by one."""
    stepping = model_path("perm", stepping=True)
    monkeypatch.setattr(type(KIND), "perm_target", lambda _: stepping)
    assert KIND.perm_target() == stepping

    def make(layer: int) -> DFlash:
        drafter: DFlash = perm(stepping=True, target_layers=(2,))
        drafter.target_layers = (layer,)
        return drafter

    path(KIND, lambda: make(2))
    with pytest.raises(AssertionError):
        path(KIND, lambda: make(2 + off))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block_size", [2, 3, 8, 12])
def test_blocks_of_every_length(kind: str, block_size: int) -> None:
    whole = perm(block_size=block_size, **KINDS[kind])
    most = whole.max_draft
    assert most == block_size - 1 + whole.block.sample_from_anchor
    for k in range(1, most + 1):
        drafter = DFlash(whole.model, k)
        n = 3 * (k + 1) + 1
        run = generate(KIND.perm_loop(drafter), SequenceState(), KIND.perm_prompt(20), n)
        check_perfect(run, k)
        assert run.stats.rounds == 3
        # The rows of the prompt, the first block, and for each round the accepted rows and a block.
        assert drafter.n_calls == 6
