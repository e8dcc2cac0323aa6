"""The bytes that a chain of four copies to the host; logits stay on the device until read."""

from __future__ import annotations

import numpy as np
import pytest

from pyllama_spec.drafters import Drafter, Eagle3, Mtp, NoDrafter
from pyllama_spec.engine import Batch, Context, Model, Sampler, SamplerParams, Transfers
from pyllama_spec.speculative import SequenceState, SpeculativeLoop
from tests.models import model_path, perm_continuation, perm_next
from tests.oracles import GREEDY

ALL, NONE, OUTPUT = -1, 0, 1
N_DRAFT, N_ROUNDS = 4, 6
# Of the largest logit of a row, between a batch of five and a row alone.
LOGIT_BOUND = 1e-2


def rounds_of(
    target: int, drafter: Drafter, params: SamplerParams = GREEDY
) -> tuple[Context, Transfers, Transfers]:
    """A context, and what crossed in N_ROUNDS rounds: of the target, and of its draft."""
    return rounds_on(Model(model_path("perm"), n_gpu_layers=target), drafter, params)


def rounds_on(
    model: Model, drafter: Drafter, params: SamplerParams = GREEDY
) -> tuple[Context, Transfers, Transfers]:
    """The same of a model that is PERM, in whatever architecture."""
    context = Context(
        model, n_ctx=512, n_threads=1, n_rs_seq=N_DRAFT + 2, target_layers=drafter.target_layers
    )
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
    """The target copies the layers' rows and three numbers per row; the draft copies its rows."""
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


@pytest.mark.parametrize("arch", ["qwen35", "glm4moe", "deepseek2"])
@pytest.mark.parametrize("target", [ALL, NONE])
def test_a_chain_of_a_head(arch: str, target: int) -> None:
    """Each drafted token transfers its row and two candidates, and no logits."""
    model = Model(model_path("perm_mtp", arch=arch), load_mtp=True, n_gpu_layers=target)
    drafter = Mtp(max_draft=N_DRAFT)
    _, _, draft = rounds_on(model, drafter)
    row = 4 * (model.info.n_embd_out + 4)
    assert draft.bytes_to_host == (0 if target == NONE else N_ROUNDS * N_DRAFT * row)
    drafter.close()


def test_candidates_of_a_head_are_those_of_its_logits() -> None:
    """Reading the logits too gives the same two, with the same probabilities."""
    model = Model(model_path("qwen35", n_heads=1), load_mtp=True, n_gpu_layers=ALL)
    context = Context(model, n_ctx=64, n_threads=1, is_head=True)
    batch, rng = Batch(4, n_row=context.n_row), np.random.default_rng(2)
    for i in range(4):
        row = rng.standard_normal(context.n_row).astype(np.float32)
        batch.add(40 + i, i, output=i != 1, row=row)
    context.decode(batch)
    for i in (3, 0, 2):
        ids, chances, _ = context.draft_candidates(i)
        logits = context.logits(i).astype(np.float64)
        best = np.argsort(-logits)[:2]
        p = np.exp(logits - logits.max())
        assert list(ids) == best.tolist()
        assert np.allclose(chances, p[best] / p.sum(), rtol=1e-4)


def test_plain_rounds_bring_an_id() -> None:
    _, own, draft = rounds_of(ALL, NoDrafter())
    assert own.bytes_to_host == N_ROUNDS * 3 * 4 and own.copies_to_host == N_ROUNDS
    assert draft == Transfers()


def test_sampling_brings_the_logits() -> None:
    context, own, _ = rounds_of(ALL, NoDrafter(), SamplerParams(temperature=0.8, seed=1))
    assert own.bytes_to_host == N_ROUNDS * (3 * 4 + 4 * context.model.info.n_vocab)


def test_logits_come_when_they_are_read() -> None:
    """The first read copies all rows; the greedy choice is their largest logit."""
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
        worst = np.abs(alone.logits(0) - rows[i]).max() / np.abs(rows[i]).max()
        assert worst < LOGIT_BOUND
