"""What a chain of four brings to the host, to the byte, and that logits wait where they are."""

from __future__ import annotations

import numpy as np
import pytest

from pyllama_spec.drafters import Drafter, Eagle3, NoDrafter
from pyllama_spec.engine import Batch, Context, Model, Sampler, SamplerParams, Transfers
from pyllama_spec.speculative import SequenceState, SpeculativeLoop
from tests.models import model_path, perm_continuation, perm_next
from tests.oracles import GREEDY

ALL, NONE, OUTPUT = -1, 0, 1
N_DRAFT, N_ROUNDS = 4, 6


def rounds_of(
    target: int, drafter: Drafter, params: SamplerParams = GREEDY
) -> tuple[Context, Transfers, Transfers]:
    """A context, and what crossed in N_ROUNDS rounds: of the target, and of its draft."""
    model = Model(model_path("perm"), n_gpu_layers=target)
    context = Context(model, n_ctx=512, n_threads=1, target_layers=drafter.target_layers)
    loop, state = SpeculativeLoop(context, drafter), SequenceState()
    prompt = [int(i) for i in np.random.default_rng(1).integers(0, 256, size=20)]
    loop.prefill(state, prompt)
    n = 1 + N_ROUNDS * (1 + drafter.max_draft)
    steps = loop.generate(state, Sampler(model, params), n)
    tokens = list(next(steps).tokens)
    own, whole = context.transfers, context.transfers_with_drafts
    for step in steps:
        tokens += step.tokens
    own, whole = context.transfers.since(own), context.transfers_with_drafts.since(whole)
    if params is GREEDY:
        assert tokens == perm_continuation(prompt[-1], len(tokens), perm_next())
        assert loop.stats.rounds == N_ROUNDS and loop.stats.accepted == loop.stats.drafted
    return context, own, whole.since(own)


@pytest.mark.parametrize(("target", "head"), [(ALL, ALL), (ALL, NONE), (NONE, ALL), (OUTPUT, ALL)])
def test_a_chain_of_four(target: int, head: int) -> None:
    """Rows of the layers that are read, three numbers of each row; of a draft its own rows."""
    drafter = Eagle3(model_path("perm_eagle3"), N_DRAFT, n_gpu_layers=head)
    context, own, draft = rounds_of(target, drafter)
    n_embd, n_rows = context.model.info.n_embd, N_DRAFT + 1
    n_layers = len(drafter.target_layers) if target == ALL else 0
    here = 0 if target == NONE else n_rows * (n_layers * n_embd * 4 + 3 * 4)
    assert own.bytes_to_host == N_ROUNDS * here
    assert own.graphs == (0 if target == NONE else N_ROUNDS)
    row = 4 * (drafter.model.info.n_embd + 4)  # with two candidates and their probabilities
    assert draft.bytes_to_host == (0 if head == NONE else N_ROUNDS * N_DRAFT * row)
    assert draft.graphs == (0 if head == NONE else N_ROUNDS * N_DRAFT)


def test_plain_rounds_bring_an_id() -> None:
    _, own, draft = rounds_of(ALL, NoDrafter())
    assert own.bytes_to_host == N_ROUNDS * 3 * 4 and own.copies_to_host == N_ROUNDS
    assert draft == Transfers()


def test_sampling_brings_the_logits() -> None:
    context, own, _ = rounds_of(ALL, NoDrafter(), SamplerParams(temperature=0.8, seed=1))
    assert own.bytes_to_host == N_ROUNDS * (3 * 4 + 4 * context.model.info.n_vocab)


def test_logits_come_when_they_are_read() -> None:
    """All rows with the first of them; what greedy sampling said is their largest."""
    model = Model(model_path("llama"), n_gpu_layers=ALL)
    context, batch = Context(model, n_ctx=64), Batch(8)
    batch.extend([1, 2, 3, 4, 5], 0, output_all=True)
    context.decode(batch)
    sampler = Sampler(model, GREEDY)
    chosen = [sampler.sample(context, i) for i in range(5)]
    before = context.transfers
    rows = [context.logits(i).copy() for i in range(5)]
    crossed = context.transfers.since(before)
    assert crossed.bytes_to_host == 5 * 4 * model.info.n_vocab and crossed.copies_to_host == 1
    assert chosen == [int(row.argmax()) for row in rows]
    assert [sampler.sample_row(row) for row in rows] == chosen
    alone = Context(model, n_ctx=64)
    for i in range(5):
        batch.clear()
        batch.add(i + 1, i, output=True)
        alone.decode(batch)
        assert np.allclose(alone.logits(0), rows[i], rtol=0, atol=0.1)
