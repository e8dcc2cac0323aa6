"""The drafter's proposals along a text, against the NumPy reference fed by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pyllama_spec.speculative import SequenceState, SpeculativeLoop
from tests.eagle3_tools import head, target_context, warm_proposal
from tests.models import model_path
from tests.oracles import forced_rows, generate, prompt_tokens, sampled, tiny
from tests.parity.eagle3_reference import Reference

HEADS: dict[str, dict[str, Any]] = {
    "plain": {},
    "eagle3.1": {"fc_norm": True, "norm_output": True, "n_draft_vocab": 200},
    "two layers": {"n_layer": 2, "target_layers": (0, 4), "own_embedding": False},
}
N_DRAFT = 6


@pytest.mark.parametrize("kind", HEADS)
def test_drafts_along_a_text(kind: str) -> None:
    """After each of several requests, pairs, positions, chain and probabilities agree."""
    model, options = tiny("llama"), {"seed": 7, **HEADS[kind]}
    drafter = head(max_draft=N_DRAFT, **options)
    kv = {"type_k": "f32", "type_v": "f32"}
    loop = SpeculativeLoop(target_context(model, drafter, **kv), drafter)
    seq, prompt = SequenceState(), prompt_tokens(21)
    for n_tokens in (1, 2, 9, 17):
        run = generate(loop, seq, prompt, n_tokens, sampled(5, temperature=1.5))
        prompt = [*run.text, 7]
        ids, probabilities = by_reference(options, drafter.target_layers, run.text)
        got = warm_proposal(loop, seq, N_DRAFT)
        assert list(got.ids) == ids
        assert got.probabilities == pytest.approx(probabilities, rel=2e-3)


def by_reference(
    options: dict[str, Any], layers: tuple[int, ...], text: list[int]
) -> tuple[list[int], list[float]]:
    """Ids and probabilities of a chain after the text."""
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
