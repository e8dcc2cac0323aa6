"""Drafts with a head that reads pairs of a token and a row, one token per step.

Pairs with a row of the target stay in the head's memory. Those with a row of its own are guesses:
they are forgotten before the next draft, the accepted ones too, since the target's row is better.
So a rejected token costs nothing, and the call that feeds the accepted pairs is the first step of
the next draft: n drafted tokens are n calls, however many sequences draft together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np

from pyllama_spec.drafters.base import NO_DRAFT, Draft, DraftRequest, SequenceErrors
from pyllama_spec.drafters.model_drafter import (
    Choice,
    DraftMemory,
    ModelDrafter,
    choose,
    head_share,
    passed,
)
from pyllama_spec.drafters.output_part import Step
from pyllama_spec.drafters.row_memory import RowMemory, Rows
from pyllama_spec.engine.batch import Batch
from pyllama_spec.engine.checks import count
from pyllama_spec.engine.context import Context
from pyllama_spec.engine.distribution import Distribution


class ChainMemory(RowMemory):
    """The pairs of all sequences, in a head's context."""

    def ask(self, seqs: Iterable[int]) -> dict[int, Choice]:
        """Feeds the waiting pairs; returns the guess after the last pair of each sequence."""
        wanted = sorted(seqs)
        self.note_asked(len(wanted))
        for seq in wanted:
            s = self.of(seq)
            if s.n_fed == self.n_ready(s):  # asked again: the last pair is fed again
                s.n_fed -= 1
        choices: dict[int, Choice] = {}

        def read(seq: int, end: int, has_more: bool) -> None:
            ids, p, row = self.context.draft_candidates(end)
            # The row is a view that the next decode overwrites.
            choices[seq] = Choice(ids, p, row.copy() if has_more else row)

        self.feed(wanted, read)
        return choices


class Asked(DraftMemory, Protocol):
    """A memory that predicts the next token of a text."""

    def ask(self, seqs: Iterable[int]) -> Mapping[int, Choice]:
        """Feeds the waiting tokens; returns the guess after the text of each sequence."""

    def n_fed(self, seq: int) -> int:
        """The position of the first guess of a sequence."""

    def decode(self, batch: Batch) -> None:
        """Runs a decode of the draft."""


_Pairs = TypeVar("_Pairs", bound=Asked)


@dataclass(slots=True)
class Chain:
    """A draft in progress: the drafted tokens, and the head's next choice or None."""

    request: DraftRequest
    position: int
    choice: Choice | None
    ids: list[int] = field(default_factory=list)
    p: list[float] = field(default_factory=list)
    candidates: list[list[tuple[int, float]]] = field(default_factory=list)
    drawn_from: list[Distribution] = field(default_factory=list)
    """Beside each drafted token what it was drawn from, if it was drawn."""
    rows: list[Rows] = field(default_factory=list)
    """Beside each drafted token the row that it is fed with, for heads that read them again."""

    @property
    def seq(self) -> int:
        """The sequence's id."""
        return self.request.seq


class ChainDrafter(ModelDrafter[_Pairs]):
    """Drafts with a head in a chain: each drafted token costs a call."""

    is_stepwise = True

    def __init__(self, *how: Any, max_draft: int, **more: Any) -> None:
        self.max_draft = count(max_draft, "max_draft", 1)
        super().__init__(*how, **more)
        self._step = Batch(1)

    def open_head(
        self, target: Context, *, is_own: bool = False, n_lanes: int = 1
    ) -> tuple[Context, int]:
        """Opens the head's context, with room for the target's tokens and for guesses."""
        params = target.params
        n_window = min(self._n_ctx or target.n_ctx_seq, target.n_ctx_seq)
        n_seqs = params.n_seq_max * n_lanes
        n_batch = max(min(params.n_batch, params.n_ubatch), n_seqs)
        # The guesses of a sequence stay until its next draft.
        context = self.open_context(
            target, n_window, self.max_draft, n_batch, n_seqs, n_lanes=n_lanes, is_head=is_own
        )
        n_hidden = self._n_features if is_own else self.model.info.n_embd
        self._step = Batch(params.n_seq_max, n_row=n_hidden, n_model_row=context.n_row)
        self._step.hidden_rows = True
        self._step.logits = False
        self.choose_among_part(context, target, self._try_step(context))
        n_choices = self._draft_ids.n_slots if self._draft_ids else None
        self.step_share = head_share(self.model, target.model, n_choices)
        return context, n_window

    def _try_step(self, context: Context) -> Step:
        step, row = self._step, np.zeros(self._step.n_row, np.float32)

        def decode(i: int) -> None:
            step.clear()
            step.add(0, i, output=True, row=row)
            context.decode(step)

        return decode

    def propose(self, requests: Sequence[DraftRequest]) -> Sequence[Draft]:
        """Feeds the pairs committed since the last draft, then drafts.

        One call of the head feeds all sequences, and one more drafts each further token of all.
        """
        pairs = self.memory_or_fail()
        errors: dict[int, Exception] = {}
        asked = passed(requests, self.can_draft, errors)
        choices = pairs.ask(r.seq for r in asked) if asked else {}
        chains = [Chain(r, pairs.n_fed(r.seq), choices[r.seq]) for r in asked]
        self.go_on(passed(chains, self.extend, errors), errors)
        drafts = {
            c.seq: Draft(c.ids, c.p, c.candidates, distributions=c.drawn_from or None)
            for c in chains
            if c.seq not in errors
        }
        if errors:
            raise SequenceErrors(errors, drafts)
        return [drafts.get(request.seq, NO_DRAFT) for request in requests]

    def go_on(self, going: list[Chain], errors: dict[int, Exception]) -> None:
        """Drafts the next tokens of the continuing chains; notes errors by sequence."""
        while going:
            self.step_all(going)
            going = passed(going, self.extend, errors)

    def extend(self, chain: Chain) -> bool:
        """Appends the chosen token to the draft; returns whether to draft another one."""
        choice = chain.choice
        if choice is None or not choice.ids:
            return False
        token, p = choose(choice, chain.request.prior, chain.ids)
        if p < self.p_min:
            return False
        chain.ids.append(token)
        chain.p.append(p)
        chain.candidates.append(choice.candidates)
        if choice.drawn_from is not None:
            chain.drawn_from.append(choice.drawn_from)
        stop = chain.request.stop
        if stop is not None and stop(p):
            return False
        return len(chain.ids) < min(chain.request.n_requested, self.max_draft)

    def step_all(self, chains: Sequence[Chain]) -> None:
        """Feeds each chain its newest token with the head's own row for it."""
        pairs, step = self.memory_or_fail(), self._step
        step.clear()
        for chain in chains:
            assert chain.choice is not None  # it was extended
            step.add(
                chain.ids[-1], chain.position + len(chain.ids) - 1, chain.request.seq,
                output=True, row=chain.choice.row,
            )  # fmt: skip
        pairs.decode(step)
        for i, chain in enumerate(chains):
            chain.choice = Choice(*pairs.context.draft_candidates(i))
