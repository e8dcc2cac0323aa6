"""EAGLE-3 alone: chains, kinds of heads, windows, and its proposals against the NumPy reference.

For tests of every draft that reads rows, see test_row_draft_acceptance.py and _paths.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pyllama_spec.drafters import Committed, Eagle3
from pyllama_spec.engine import Batch, Context
from pyllama_spec.speculative import SequenceState, SpeculativeLoop
from tests.eagle3_tools import ask, head, target_context, warm_proposal
from tests.models import model_path
from tests.oracles import forced_rows, generate, prompt_tokens, sampled, tiny
from tests.parity.eagle3_reference import Reference
from tests.perm_tools import check_perfect, perm_loop
from tests.row_drafts import ROW_DRAFTS
from tests.scripted import told

perm_prompt = ROW_DRAFTS["eagle3"].perm_prompt


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


def test_n_drafted_tokens_are_n_calls() -> None:
    """The first call feeds exactly the accepted rows, and is the first step of the draft."""
    drafter = head("perm_eagle3", 5)
    loop, seq = perm_loop(drafter), SequenceState()
    fed: list[tuple[int, bool]] = []
    pairs = drafter.memory_or_fail()
    decode = pairs.decode

    def count(batch: Batch) -> None:
        assert batch in (pairs._batch, drafter._step)
        fed.append((batch.n_tokens, batch is pairs._batch))
        decode(batch)

    pairs.decode = count  # type: ignore[method-assign]
    run = generate(loop, seq, perm_prompt(20), 19)
    prefill, rounds = fed[0], fed[1:]
    assert prefill == (19, True)
    assert [step.n_drafted for step in run.steps] == [0, 5, 5, 5]
    first = [(1, True)] + [(1, False)] * 4
    assert rounds == first + [(6, True), *first[1:]] * 2


# Sampling at a high temperature: drafts of a random head are rejected at every depth.
PARAMS = sampled(5, temperature=1.5)


def opened(drafter: Eagle3, **params: Any) -> SpeculativeLoop:
    """A loop on a random llama."""
    return SpeculativeLoop(target_context(tiny("llama"), drafter, **params), drafter)


@pytest.mark.parametrize("window", [8, 30, 64])
def test_a_window(window: int) -> None:
    """A head with a window equals a head that was given the window alone."""
    drafter, layers = head(max_draft=4, n_ctx=window), (1, 2, 3)
    loop, seq = opened(drafter), SequenceState()
    generate(loop, seq, prompt_tokens(90), 40, PARAMS)
    ask(drafter, 0, seq.tokens, 1)
    assert drafter.context is not None
    first = drafter.context.memory.positions(0)[0]
    assert first > 0
    got = ask(drafter, 0, seq.tokens, 4)
    with Context(tiny("llama"), n_ctx=256, target_layers=layers, n_threads=1) as context:
        fresh = head(max_draft=4)
        fresh.attach(context)
        rows = feed(context, seq.tokens[:-1])
        # Pairs from `first` on: the sequence is given with everything before it skipped.
        state = fresh.memory_or_fail().of(0)
        state.tokens[:] = seq.tokens[: first + 1]
        state.rows.append(first, [row[first : first + 1] for row in rows])
        state.n_fed = state.first = first
        rest = [row[first + 1 :] for row in rows]
        fresh.commit([Committed(0, seq.tokens[first + 1 : -1], first + 1, rest, first + 1)])
        fresh.commit(told(seq.tokens[-1:], len(seq.tokens) - 1))
        expected = ask(fresh, 0, seq.tokens, 4)
        # The window's cells are reused, so that sums over them have another order.
        assert got.ids == expected.ids
        assert got.probabilities == pytest.approx(expected.probabilities, rel=1e-3)


def feed(context: Context, tokens: list[int]) -> list[Any]:
    """The layer inputs of a text."""
    batch = Batch(len(tokens))
    batch.extend(tokens, 0)
    context.decode(batch)
    return [context.layer_input(layer).copy() for layer in context.target_layers]


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
