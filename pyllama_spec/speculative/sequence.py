"""One sequence of a context, and one request on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pyllama_spec.drafters.base import Draft, DraftRequest, TokenView
from pyllama_spec.drafters.draws import TokenDraws
from pyllama_spec.engine import Adapter
from pyllama_spec.engine.media import MediaRows, PlacedRows
from pyllama_spec.engine.media_ids import up_to_medium
from pyllama_spec.speculative.acceptance import RowObserver, TokenSampler
from pyllama_spec.speculative.stats import SpeculationStats, Timing

# LoRA adapters, each with its scale. None leaves the context's own as they are.
Adapters = tuple[tuple[Adapter, float], ...] | None
# What sequences are computed with, beside model and settings: adapters_key() of engine/context.py.
AdaptersKey = tuple[tuple[str, float], ...]
# Tokens that n_common() compares at once.
_STRETCH = 512


@dataclass(slots=True)
class SequenceState:
    """The tokens and counts of one sequence of a context. It outlasts its requests."""

    seq_id: int = 0  # the number of the sequence in the context
    tokens: list[int] = field(default_factory=list)  # the prompt and the committed tokens
    # The number of them, from the first on, in the target's memory. While text is generated it is
    # one less than all: the last committed token is pending.
    n_decoded: int = 0
    # The number of those that were given to the caller; None for all. A draft may go past a stop
    # string, or past the place where the caller stopped reading.
    n_given: int | None = None
    adapters: Adapters = None  # the adapters that its memory was computed with

    @property
    def n_held(self) -> int:
        """The number of decoded tokens that belong to the delivered text."""
        return self.n_decoded if self.n_given is None else min(self.n_given, self.n_decoded)


class SavedSequence(NamedTuple):
    """A sequence in the host's memory, for HeldSequences.restore()."""

    tokens: tuple[int, ...]
    n_decoded: int
    n_given: int | None
    memory: bytes  # the engine's; b"" if nothing was decoded
    drafter: bytes | None  # None if it saved none: the tokens are committed to it again
    adapters: Adapters = None


class Step(NamedTuple):
    """The result of one round for one sequence.

    Attributes:
        tokens: the committed tokens, in order.
        n_drafted: the number of verified tokens.
        n_accepted: the number of `tokens`, from the first on, that were drafted.
        finish_reason: "stop" for an end-of-generation token, "length" for a limit, None to
            continue, and None where there is an error.
        error: the error that ended the request; the tokens before it are committed.
        who: the source of the draft: "model"; "copy" for a copy of the text itself or of the
            request's prediction; "memory" for a copy of an earlier text; "grammar" for forced text;
            or "nobody" if nothing was proposed.
    """

    tokens: tuple[int, ...]
    n_drafted: int
    n_accepted: int
    finish_reason: str | None
    error: BaseException | None = None
    who: str = "nobody"


@dataclass(slots=True, eq=False)
class SequenceRun:
    """One request on one sequence: the inputs of a round, and its results."""

    state: SequenceState  # the sequence
    prompt: Sequence[int]  # the ids of the prompt
    # Chooses tokens; None to decode the prompt and generate nothing yet.
    sampler: TokenSampler | None = None
    max_tokens: int = 1  # the maximum number of tokens to generate
    observe: RowObserver | None = None  # called with each committed token and its row
    # Called with a number; returns at most so many tokens that have to follow, or are likely to.
    # They are verified, and the drafter is not asked. None for no such tokens.
    forced: Callable[[int], Sequence[int]] | None = None
    # stats, timing: the figures of this request alone.
    stats: SpeculationStats = field(default_factory=SpeculationStats)
    timing: Timing = field(default_factory=Timing)
    adapters: Adapters = None  # the adapters that its rows are computed with
    # The maximum number of tokens to draft per round; None for the round's own maximum.
    max_draft: int | None = None
    remember: bool = True  # whether a drafter may keep its text for later requests
    user: str = ""  # the user of the request; "" if it was not given
    # Drafts from the text that the answer is expected to repeat; asked before the drafter.
    prediction: Callable[[DraftRequest], Draft] | None = None
    # The random draws of a drafter; None for greedy drafts.
    draws: TokenDraws | None = None
    # The maximum number of prompt tokens to reuse, from this sequence alone; None for as many as
    # any sequence holds.
    max_held: int | None = None
    # The rows of images in the prompt, whose ids are below 0.
    media: Sequence[PlacedRows] = ()
    # ---- what HeldSequences finds of its prefix
    # Numbers of prompt tokens after which a part ends when the prompt is read, since other prompts
    # continue differently there.
    borders: set[int] = field(default_factory=set)
    adapters_key: AdaptersKey = ()  # of the adapters that it is computed with
    # The request that reads a prefix of its prompt, which it copies then; else None.
    waits_for: SequenceRun | None = None
    # The number of prompt tokens that were not read, since they were held already.
    n_cached: int = 0
    # ---- how far it is
    n_generated: int = 0  # the number of generated tokens
    # The number of rounds, since a part of its prompt was read, in which other prompts were read.
    n_passed: int = 0
    # Set from any thread; the round ends the request before its next decode.
    is_cancelled: bool = False
    # Without a sampler, the row of the last batch that follows the prompt, until another batch is
    # decoded; else None.
    ready_row: int | None = None
    finish_reason: str | None = None  # see Step; of the last one
    # Whether the last Step had an error. The error itself stays out of here: its traceback holds
    # the frames of its readers, and so the model.
    has_failed: bool = False
    view: TokenView = field(init=False)

    def __post_init__(self) -> None:
        self.view = TokenView(self.state.tokens)

    @property
    def seq_id(self) -> int:
        """The sequence's number."""
        return self.state.seq_id

    @property
    def n_left(self) -> int:
        """The number of tokens that may still be generated."""
        return self.max_tokens - self.n_generated

    @property
    def n_missing(self) -> int:
        """The tokens to decode before a draft can be verified: 0 during generation.

        Of a prompt all of its tokens count, since its last row gives the first token. Text that the
        memory has lost is decoded again, but for the pending token.
        """
        return len(self.state.tokens) - self.state.n_decoded - (self.n_generated > 0)

    def up_to_border(self, n: int) -> int:
        """The number of the prompt's next n tokens to read at once."""
        at = self.state.n_decoded
        for start, media in self.media:
            end = start + len(media.ids)
            if start <= at < end:
                return end - at if media.is_whole else min(n, end - at)
            if at < start < at + n:
                n = start - at
        return min((border - at for border in self.borders if 0 < border - at < n), default=n)

    def medium_at(self, at: int) -> PlacedRows | None:
        """The image that a token of the prompt is a row of; None for text."""
        return next((m for m in self.media if m.start <= at < m.start + len(m.media.ids)), None)

    def rows_at(self, at: int, n: int) -> MediaRows:
        """The rows of an image that tokens at .. at + n - 1 are."""
        placed = self.medium_at(at)
        assert placed is not None
        return placed.media.part(at - placed.start, n)

    @property
    def is_at_a_border(self) -> bool:
        """Whether what is read ends between two tokens, and not between two rows of an image."""
        at = self.state.n_decoded
        return not self.media or up_to_medium(self.state.tokens, at) == at

    @property
    def is_reading(self) -> bool:
        """Whether the request still reads its prompt."""
        return not (self.is_over or self.is_cancelled or self.n_generated) and self.n_missing > 0

    @property
    def is_over(self) -> bool:
        """Whether the request has ended."""
        return self.finish_reason is not None or self.has_failed


def n_common(held: Sequence[int], wanted: Sequence[int]) -> int:
    """The length of the common prefix."""
    n, at = min(len(held), len(wanted)), 0
    # Many tokens are compared at once, as long as they are equal.
    while at < n and tuple(held[at : at + _STRETCH]) == tuple(wanted[at : at + _STRETCH]):
        at += _STRETCH
    return next((i for i in range(at, n) if held[i] != wanted[i]), n)
