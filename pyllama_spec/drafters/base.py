"""What a drafter is: it proposes tokens, and is told what became of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from pyllama_spec.engine.context import Context

# One array per target layer, in the order of Drafter.target_layers.  # [n_rows, n_embd] float32
Features = Sequence[npt.NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Draft:
    """Proposed tokens.

    Attributes:
        ids: what may come next, first token first; empty for no proposal.
        probabilities: [len(ids)] the drafter's probability of each one, or None.

    """

    ids: Sequence[int] = ()
    probabilities: Sequence[float] | None = None


NO_DRAFT = Draft()


@runtime_checkable
class Drafter(Protocol):
    """Proposes continuations. The loop never asks what kind it is, and it never imports the loop.

    What the loop promises, per sequence:

    - `begin` gets the tokens of a prompt, batch after batch, in order, each with its rows;
    - `commit` gets every token that is committed after the prompt. `features` are the rows of the
      tokens that the target decoded for it, one per committed token: row i belongs to the token
      *before* tokens[i]. The first token after a prompt comes without rows: the row that it pairs
      with is the last one that `begin` got;
    - `propose` is called when all committed tokens are known; `pending` is the last of them, and
      the only one that the target has not decoded;
    - rejected tokens are never mentioned: there is nothing to undo after a rejection;
    - `truncate` says that only the first n_keep tokens still count, before `begin` goes on there.

    Arrays in `features` are views that the next decode overwrites: copy what is to be kept.

    An exception in any of these turns the drafter off for the rest of the generation. The text
    goes on without it, and the result says why in `reason_off`.
    """

    @property
    def name(self) -> str:
        """What the statistics call it."""
        ...

    @property
    def target_layers(self) -> tuple[int, ...]:
        """The layer inputs that it wants from the target; () for none."""
        ...

    @property
    def max_draft(self) -> int:
        """The most tokens that it proposes at once."""
        ...

    def begin(self, seq: int, tokens: Sequence[int], features: Features) -> None:
        """Takes a batch of a prompt: the ids, and for each one its row of each target layer."""
        ...

    def propose(self, seq: int, pending: int, n: int) -> Draft:
        """At most n tokens that may follow `pending`."""
        ...

    def commit(self, seq: int, tokens: Sequence[int], features: Features) -> None:
        """Takes the tokens of a round: the accepted ones, then the target's own."""
        ...

    def truncate(self, seq: int, n_keep: int) -> None:
        """Forgets all but the first n_keep tokens of the sequence."""
        ...

    def copy(self, seq: int, to: int) -> None:
        """Lets the sequence `to` begin as a copy of `seq`."""
        ...

    def close(self) -> None:
        """Frees what it holds. May be called twice."""
        ...


@runtime_checkable
class AttachedDrafter(Protocol):
    """What a drafter may have beside: a model of its own that computes next to the target."""

    def attach(self, target: Context) -> None:
        """Called by the loop that it drafts for, before anything else."""
        ...


@runtime_checkable
class ResumingDrafter(Protocol):
    """What a drafter may have beside: a say in how much of a prompt need not be decoded again."""

    def resume_at(self, seq: int, n_keep: int) -> int:
        """How many of the first n_keep tokens it can go on after; the rest comes with begin()."""
        ...


@runtime_checkable
class SavingDrafter(Protocol):
    """What a drafter may have beside: a state that can be saved with the target's."""

    def save(self, seq: int) -> bytes:
        """What it knows of a sequence."""
        ...

    def restore(self, seq: int, data: bytes) -> int:
        """Puts back what save() gave; returns how many tokens it knows of the sequence now."""
        ...


@dataclass(frozen=True, slots=True)
class Vote:
    """What somebody else holds to be the next token of a draft.

    Attributes:
        token: the id.
        p: its probability.
        weight: how much this counts, where the draft model's own distribution counts 1.

    """

    token: int
    p: float
    weight: float


# Given a sequence and what has been drafted behind its text: what else has a say.
Adviser = Callable[[int, Sequence[int]], Sequence[Vote]]


@runtime_checkable
class AdvisedDrafter(Protocol):
    """What a drafter may have beside: an ear for others."""

    adviser: Adviser | None


class NoDrafter:
    """Proposes nothing: the loop with it is plain decoding."""

    name = "none"
    target_layers: tuple[int, ...] = ()
    max_draft = 0

    def begin(self, seq: int, tokens: Sequence[int], features: Features) -> None:
        """Needs nothing."""

    def propose(self, seq: int, pending: int, n: int) -> Draft:
        """Proposes nothing."""
        return NO_DRAFT

    def commit(self, seq: int, tokens: Sequence[int], features: Features) -> None:
        """Needs nothing."""

    def truncate(self, seq: int, n_keep: int) -> None:
        """Needs nothing."""

    def copy(self, seq: int, to: int) -> None:
        """Needs nothing."""

    def close(self) -> None:
        """Holds nothing."""
