"""O3 for the paths of EAGLE-3 alone: windows of pairs, steps of several sequences.

For tests of every draft that reads rows, see test_row_draft_paths.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from pyllama_spec.drafters import (
    Committed,
    DraftRequest,
    Eagle3,
)
from pyllama_spec.engine import Batch, Context
from pyllama_spec.speculative import SequenceState, SpeculativeLoop
from tests.eagle3_tools import (
    ask,
    head,
    proposal,
    target_context,
)
from tests.oracles import generate, prompt_tokens, sampled, tiny
from tests.row_drafts import context_of
from tests.scripted import told

# Sampling at a high temperature: drafts of a random head are rejected at every depth.
PARAMS = sampled(5, temperature=1.5)


def opened(drafter: Eagle3, **params: Any) -> SpeculativeLoop:
    """A loop on a random llama."""
    return SpeculativeLoop(target_context(tiny("llama"), drafter, **params), drafter)


@pytest.mark.parametrize("cut", [1, 20, 80, 150])
def test_a_prefix_shorter_than_what_a_window_forgot(cut: int) -> None:
    """If the window has dropped everything before the prefix, the target decodes it again."""
    drafter = head(max_draft=4, n_ctx=24)
    loop, seq = opened(drafter), SequenceState()
    text = generate(loop, seq, prompt_tokens(120), 60, PARAMS).text
    prompt = text[: len(text) - cut] + prompt_tokens(2, seed=8)
    run = generate(loop, seq, prompt, 1, PARAMS)
    assert run.stats.reason_off is None
    first, last = context_of(drafter).memory.positions(0)
    assert last - first >= 10


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


def three_texts(drafter: Eagle3) -> tuple[SpeculativeLoop, list[SequenceState]]:
    """A loop whose drafter knows three texts, each with a pending token."""
    loop = opened(drafter, n_ctx=768, n_seq_max=3)
    seqs = [SequenceState(i) for i in range(3)]
    for seq in seqs:
        generate(loop, seq, prompt_tokens(9 + 8 * seq.seq_id, seed=seq.seq_id), 5, PARAMS)
    return loop, seqs


def test_drafts_of_several_sequences_are_those_of_each_alone() -> None:
    drafter = head()
    _, seqs = three_texts(drafter)
    n_calls = drafter.n_calls
    found = drafter.propose([DraftRequest(seq.seq_id, seq.tokens, 8 - seq.seq_id) for seq in seqs])
    assert drafter.n_calls == n_calls + 8, "as many calls as the longest draft has tokens"
    for seq, draft in zip(seqs, found, strict=True):
        assert proposal(draft) == ask(drafter, seq.seq_id, seq.tokens, 8 - seq.seq_id)
        assert draft.candidates is not None
        assert [place[0] for place in draft.candidates] == list(
            zip(draft.ids, draft.probabilities or (), strict=True)
        )
