"""Acceptance of EAGLE-3 heads for PERM: chains, kinds of heads, calls of a head.

For tests of every draft that reads rows, see test_row_draft_acceptance.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pyllama_spec.drafters import Draft, DraftRequest, Eagle3
from pyllama_spec.engine import Batch
from pyllama_spec.speculative import SequenceState
from tests.eagle3_tools import head
from tests.models import model_path
from tests.oracles import generate
from tests.perm_tools import check_perfect, perm_loop
from tests.row_drafts import ROW_DRAFTS

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


@pytest.mark.parametrize("n_ubatch", [1, 3, 7, 32, 512])
def test_prompts_around_ubatch_boundaries(n_ubatch: int) -> None:
    loop = perm_loop(head("perm_eagle3", 4), n_batch=512, n_ubatch=n_ubatch, n_ctx=1200)
    seq = SequenceState()
    sizes = {1, 2, n_ubatch - 1, n_ubatch, n_ubatch + 1, 2 * n_ubatch, 2 * n_ubatch + 1} - {0}
    for size in sorted(sizes):
        check_perfect(generate(loop, seq, perm_prompt(size, seed=size), 12), 4)


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


class Half(Eagle3):
    """Right for two tokens, wrong from the third on."""

    def propose(self, requests: Sequence[DraftRequest]) -> Sequence[Draft]:
        """Two tokens of the head's, then nonsense."""
        drafts = [list(draft.ids) for draft in super().propose(requests)]
        return [Draft([*ids[:2], *[(i + 1) % 256 for i in ids[2:]]]) for ids in drafts]


def test_rejected_rows_cost_the_draft_nothing() -> None:
    drafter = Half(model_path("perm_eagle3"), 5)
    loop = perm_loop(drafter)
    run = generate(loop, SequenceState(), perm_prompt(20), 31)
    full = [step.n_accepted for step in run.steps if step.n_drafted == 5]
    assert full == [2] * len(full)
    n_rounds = sum(step.n_drafted > 0 for step in run.steps)
    assert drafter.n_calls == 1 + sum(step.n_drafted for step in run.steps)
    assert n_rounds > 5
