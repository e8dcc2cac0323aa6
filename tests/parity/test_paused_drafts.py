"""A rarely used draft computes nothing, and then drafts from the newest rows.

For every kind that reads rows (tests/row_drafts.py). PERM shows whether it resumes from the right
rows: all drafts are accepted, or none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pyllama_spec.drafters import row_memory
from pyllama_spec.drafters.row_memory import RowMemory
from pyllama_spec.speculative import SequenceState, SpeculativeLoop
from pyllama_spec.speculative.controller import Controller, DraftDecision, Span
from pyllama_spec.speculative.controller.base import NOT_ASKED
from tests.models import perm_continuation
from tests.oracles import generate
from tests.row_drafts import (
    READ_ROWS,
    ROW_DRAFTS,
    SUCCESSOR,
    AnyDrafter,
    RowDraft,
    check_perfect,
    marked,
)

# Several heads are never paused.
ONE_HEAD = [name for name in READ_ROWS if name != "several heads"]
each_one_head = pytest.mark.parametrize("name", [marked(name) for name in ONE_HEAD])


class Switch(Controller):
    def __init__(self) -> None:
        self.is_on = True

    def decide(self, spans: Sequence[Span]) -> Sequence[DraftDecision]:
        return [DraftDecision(s.max_draft) if self.is_on else NOT_ASKED for s in spans]


def is_paused(memory: RowMemory) -> bool:
    """Whether it is paused now; a call, since mypy narrows a property after an assert."""
    return memory.is_paused


def loop_of(
    kind: RowDraft, drafter: AnyDrafter, **params: Any
) -> tuple[SpeculativeLoop, Switch, RowMemory]:
    """A loop on PERM, what switches it, and what its draft remembers."""
    switch, values = Switch(), {"n_ctx": 2048, **params}
    first = kind.perm_loop(drafter, **values)
    loop = SpeculativeLoop(first.target, drafter, controller=switch)
    memory = drafter.memory_or_fail()
    assert isinstance(memory, RowMemory)
    return loop, switch, memory


def decode_plainly(loop: SpeculativeLoop, switch: Switch, kind: RowDraft, n: int) -> SequenceState:
    seq, prompt = SequenceState(), kind.perm_prompt(20)
    switch.is_on = False
    run = generate(loop, seq, prompt, n)
    assert run.tokens == perm_continuation(prompt[-1], n, SUCCESSOR)
    assert run.stats.drafted == 0
    switch.is_on = True
    return seq


@each_one_head
def test_it_computes_nothing_while_it_is_not_asked(name: str) -> None:
    kind = ROW_DRAFTS[name]
    loop, switch, memory = loop_of(kind, kind.perm())
    assert not is_paused(memory)
    seq = decode_plainly(loop, switch, kind, 200)
    assert is_paused(memory)
    n_calls = memory.n_calls
    switch.is_on = False
    for n_more in (200, 3):
        text = kind.further(seq.tokens, n_more)  # in many parts
        assert generate(loop, seq, text, 70).stats.drafted == 0
        s = memory.of(seq.seq_id)
        assert s.rows.end - s.rows.start <= row_memory._MAX_WAITING + loop.target.n_ubatch + 1
        assert len(s.rows._buffer) <= 4 * row_memory._MAX_WAITING
        assert memory.n_unread(seq.seq_id) <= row_memory._MAX_WAITING
    assert memory.n_calls == n_calls


@each_one_head
@pytest.mark.parametrize("n_plain", [150, 300])
def test_all_is_accepted_after_a_pause(name: str, n_plain: int) -> None:
    """From the first draft on, whether its memory continues or starts anew."""
    kind = ROW_DRAFTS[name]
    loop, switch, memory = loop_of(kind, kind.perm())
    check_perfect(generate(loop, SequenceState(), kind.perm_prompt(20), 30))
    seq = decode_plainly(loop, switch, kind, n_plain)
    assert is_paused(memory)
    n_calls = memory.n_calls
    # Twelve rounds, of which the first one drafts already.
    run = generate(loop, seq, kind.further(seq.tokens, 1), 12 * (1 + kind.n_perm))
    check_perfect(run, kind.n_perm)
    assert run.steps[1].n_drafted == kind.n_perm
    assert memory.n_calls > n_calls
    assert not is_paused(memory)
