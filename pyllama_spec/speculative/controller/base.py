"""The interface of controllers: a controller decides how many tokens a round drafts and verifies.

A round calls four methods: decide() before drafting, stop_of() for drafts made token by token,
verify_lengths() after drafting, and learn() at the end. A controller gets counts, probabilities and
seconds and returns counts, so its decisions cannot change the text. With rejection sampling they
change which text a seed gives, but not the text's distribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from pyllama_spec.drafters.base import NO_DRAFT, Draft, DraftStop, name_of_class
from pyllama_spec.engine.context import FEW_ROWS


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a round, for the scheduler and the controller."""

    max_draft: int = 0  # the maximum number of tokens that a sequence drafts in any round
    max_draft_reason: str = ""  # the reason for that limit, in words
    is_stepwise: bool = False  # see Drafter
    has_lookup: bool = False  # see Drafter
    # The cost of drafting a token in decodes of one row (Drafter.step_share); 0 if not known.
    step_share: float = 0.0
    n_ctx: int = 0  # the number of positions of a sequence
    # The maximum number of rows of a verify batch: of as many as are exact (docs/limits.md), so
    # that a text does not depend on the other sequences.
    max_rows: int = FEW_ROWS
    # The maximum number of prompt tokens per decode. Without a pace, prompts are always cut at the
    # same places, whatever runs beside them.
    max_chunk: int = 512
    # Read prompts with at most this many tokens left one token a round beside the other sequences,
    # which needs no further pass over the weights; 0 to read them at once.
    max_stepwise: int = 0
    # Whether parts of prompts go into the verify batch. Their rows then differ from those of a
    # decode alone; it pays if all sequences share one cache, which the engine reads once for all of
    # them.
    mixes_prompts: bool = False
    is_paced: bool = False  # whether parts of prompts are as large as PromptPace says
    has_streams: bool = False  # whether each sequence has its own stream in the memory
    # needs_equal_rows, keeps_whole, goes_alone, can_fill: see Rollback.
    needs_equal_rows: bool = False
    keeps_whole: bool = False
    goes_alone: bool = False
    can_fill: bool = False

    @property
    def is_padded(self) -> bool:
        """Whether a batch's sequences are padded to equal length: the longest draft is the cost."""
        return self.has_streams or self.needs_equal_rows


class DraftDecision(NamedTuple):
    """How many tokens a controller wants for one sequence in one round."""

    n_requested: int = 0  # the number that the drafter is asked for; 0 to not ask it
    n_lookup: int = 0  # the number of tokens of a lookup hit; 0 for n_requested
    lookup_only: bool = False  # whether only drafts without a model call are wanted
    is_retry: bool = False  # whether the drafter was disabled and is tried again
    reason: str = ""  # why the drafter's model is not asked though it is not disabled


NOT_ASKED = DraftDecision()


@dataclass(slots=True, eq=False)
class Span:
    """The part of one sequence in one round: numbers only.

    The scheduler makes it, the controller decides on it, the round fills in what came of it.
    """

    seq: int  # the number of the sequence
    n_past: int  # the number of its tokens in the target's memory
    max_draft: int = 0  # the maximum number of drafted tokens
    # The number of prompt tokens that are read; 0 to verify the pending token and its draft.
    n_prompt: int = 0
    is_media: bool = False  # whether these are rows of an image
    # None if the controller is not asked: for a prompt, forced text, if nothing is ever drafted.
    decision: DraftDecision | None = None
    n_requested: int = 0  # the number of tokens that the drafter is asked for
    asks_model: bool = False  # whether the drafter is asked for more than lookups
    # Who was asked for a draft: "copies" if only copies were asked for or the request's prediction
    # answered; "" for nobody, such as after a failure of the drafter.
    asked_of: Literal["", "copies", "drafter"] = ""
    draft: Draft = NO_DRAFT  # the proposed draft
    is_predicted: bool = False  # whether it is from the request's prediction
    n_verified: int = 0  # the number of its tokens that are verified
    ids: Sequence[int] = ()  # those tokens
    n_pad: int = 0  # the number of padding tokens after them
    n_idle: int = 0  # the number of idle sequences after it that are padded to its length
    first_row: int = 0  # the span's first row in the batch
    tokens: Sequence[int] = ()  # what the round committed; () for a prompt, and after a failure
    # The seconds that the draft saved in this round, and their error; None if that is not known.
    saved_s: float | None = None
    saved_error_s: float = 0.0

    def decide(self, decision: DraftDecision) -> None:
        """Sets the decision: requests n_requested tokens, at most as many as may be drafted."""
        self.decision = decision
        self.n_requested = n = max(min(decision.n_requested, self.max_draft), 0)
        self.asks_model = n > 0 and not decision.lookup_only

    def force(self, ids: Sequence[int]) -> None:
        """Verifies forced text: no drafter is asked for it, and no controller weighs it."""
        self.draft = Draft(ids)
        self.verify(len(ids))

    def verify(self, n: int) -> None:
        """Limits the verified tokens of the draft to the first n."""
        ids = self.draft.ids
        if n < len(ids):
            n = max(n, 0)
            ids = ids[:n]
        self.n_verified, self.ids = len(ids), ids

    @property
    def is_retry(self) -> bool:
        """Whether the drafter was disabled and is tried again."""
        return self.decision is not None and self.decision.is_retry

    @property
    def is_forced(self) -> bool:
        """Whether the draft is forced text, for which no drafter was asked."""
        return self.decision is None and bool(self.draft.ids)

    @property
    def n_rows(self) -> int:
        """The number of rows in a decode, without padding."""
        return self.n_prompt or 1 + self.n_verified


@dataclass(frozen=True, slots=True)
class Spent:
    """The seconds of a round."""

    draft_s: float  # in propose()
    verify_s: float  # in verify batches of the target
    rest_s: float = 0.0  # in sampling, bookkeeping, commit()
    is_pure: bool = True  # whether the round computed only these sequences, and read no prompt

    @property
    def total_s(self) -> float:
        """The total seconds."""
        return self.draft_s + self.verify_s + self.rest_s


class Controller:
    """Drafts as many tokens as allowed and verifies all. Subclasses override this.

    One controller belongs to one Round. Its answers may depend on clocks: the text does not, but
    for one that rejection sampling accepts.
    """

    name: str = name_of_class()  # its name in the statistics
    # Whether learn_costs() is called with the costs of verify batches when a target is opened.
    wants_costs: bool = False

    def attach(self, limits: Limits) -> None:
        """Called by the round before anything else."""

    def learn_costs(self, seconds: dict[int, float]) -> None:
        """Learns the seconds of verify batches by rows, measured when the target opens."""

    def begin(self, seq: int) -> None:
        """A request begins on a sequence."""

    def catch_up(self, seq: int, n_tokens: int) -> None:
        """Notes that the drafter reads n tokens of the sequence before its next draft."""

    def decide(self, spans: Sequence[Span]) -> Sequence[DraftDecision]:
        """The decision for each span, in order."""
        return [DraftDecision(span.max_draft) for span in spans]

    def stop_of(self, span: Span) -> DraftStop | None:
        """The stop function of a sequence's draft; None to draft n_requested tokens."""
        return None

    def verify_lengths(self, spans: Sequence[Span]) -> Sequence[int]:
        """The number of each span's drafted tokens to verify; more than drafted means all."""
        return [len(span.draft.ids) for span in spans]

    def weigh(self, spans: Sequence[Span], spent: Spent) -> None:
        """Sets `saved_s` of all spans of a round that read no prompt, if their costs are known."""

    def learn(self, spans: Sequence[Span], spent: Spent) -> None:
        """Learns the committed tokens and the seconds of a round."""

    def reason_off(self, seq: int) -> str | None:
        """The reason why drafting is disabled for a sequence; None if it is enabled."""
        return None


class FixedLength(Controller):
    """Drafts as many tokens as the drafter gives, in every round."""

    name = "fixed"


class Off(Controller):
    """Plain decoding with any drafter."""

    name = "off"

    def decide(self, spans: Sequence[Span]) -> Sequence[DraftDecision]:
        """Requests no draft."""
        return [NOT_ASKED] * len(spans)

    def reason_off(self, seq: int) -> str | None:
        """Drafting is switched off."""
        return "the controller is off"
