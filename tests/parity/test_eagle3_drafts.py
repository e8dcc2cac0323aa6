"""EAGLE-3 alone: chains, kinds of heads, windows, and its proposals against the NumPy reference.

For tests of every draft that reads rows, see test_row_draft_acceptance.py and _paths.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pyllama_spec.speculative import SequenceState, SpeculativeLoop
from tests.eagle3_tools import ask, head, target_context
from tests.models import model_path
from tests.oracles import forced_rows, generate, prompt_tokens, sampled, tiny
from tests.parity.eagle3_reference import Reference
from tests.row_drafts import ROW_DRAFTS, check_perfect

KIND = ROW_DRAFTS["eagle3"]
perm_loop, perm_prompt = KIND.perm_loop, KIND.perm_prompt


@pytest.mark.parametrize("k", range(1, 17))
def test_chains(k: int) -> None:
    loop = perm_loop(head("perm_eagle3", k))
    run = generate(loop, SequenceState(), perm_prompt(20), 3 * (k + 1) + 1)
    check_perfect(run, k)
    assert run.stats.rounds == 3


@pytest.mark.parametrize(
    "options",
    [
        {"norm_output": True},
        {"reduced": True},
        {"target_layers": (0, 2, 4)},
        {"target_layers": (4,)},
        {"target_layers": (0, 1, 2, 3, 4)},
    ],
    ids=["norm_output", "d2t", "three layers", "final layer", "five layers"],
)
def test_kinds_of_heads(options: dict[str, object]) -> None:
    run = generate(
        perm_loop(head("perm_eagle3", 6, **options)), SequenceState(), perm_prompt(33), 60
    )
    check_perfect(run, 6)


@pytest.mark.parametrize("n_ubatch", [3, 32])
@pytest.mark.parametrize("k", [1, 2, 8])
def test_a_head_that_reads_the_token_alone(k: int, n_ubatch: int) -> None:
    """It tests the other half of a pair: each row stands beside the token that follows it."""
    loop, seq = (
        perm_loop(head("perm_eagle3", k, read_token=True), n_ubatch=n_ubatch),
        SequenceState(),
    )
    run = generate(loop, seq, perm_prompt(20), 30)
    check_perfect(run, k)
    check_perfect(generate(loop, seq, [*run.text[:40], 3, 4], 30), k)


HEADS: dict[str, dict[str, Any]] = {
    "plain": {},
    "eagle3.1": {"fc_norm": True, "norm_output": True, "n_draft_vocab": 200},
    "two layers": {"n_layer": 2, "target_layers": (0, 4), "own_embedding": False},
}
N_DRAFT = 6


@pytest.mark.parametrize("kind", HEADS)
def test_drafts_along_a_text(kind: str) -> None:
    model, options = tiny("llama"), {"seed": 7, **HEADS[kind]}
    drafter = head(max_draft=N_DRAFT, **options)
    kv = {"type_k": "f32", "type_v": "f32"}
    loop = SpeculativeLoop(target_context(model, drafter, **kv), drafter)
    seq, prompt = SequenceState(), prompt_tokens(21)
    for n_tokens in (1, 2, 9, 17):
        run = generate(loop, seq, prompt, n_tokens, sampled(5, temperature=1.5))
        prompt = [*run.text, 7]
        ids, probabilities = by_reference(options, drafter.target_layers, run.text)
        got = ask(drafter, 0, seq.tokens, N_DRAFT)
        assert list(got.ids) == ids
        assert got.probabilities == pytest.approx(probabilities, rel=2e-3)


def by_reference(
    options: dict[str, Any], layers: tuple[int, ...], text: list[int]
) -> tuple[list[int], list[float]]:
    reference = Reference(model_path("eagle3", **options), model_path("llama"), n_ctx=256)
    kv = {"type_k": "f32", "type_v": "f32"}
    rows = forced_rows(tiny("llama"), text[:-1], layers, **kv)[1]  # [n_layers, n_tokens, n_embd]
    for position, token in enumerate(text[1:]):
        logits, row = reference.step(token, rows[:, position], position, own=False)
    ids: list[int] = []
    probabilities: list[float] = []
    for position in range(len(text) - 1, len(text) - 1 + N_DRAFT):
        weights = np.exp(logits - logits.max())
        ids.append(int(reference.full_logits(logits).argmax()))
        probabilities.append(float(1 / weights.sum()))
        logits, row = reference.step(ids[-1], row, position, own=True)
    return ids, probabilities
