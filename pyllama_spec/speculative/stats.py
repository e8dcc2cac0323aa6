"""Counts and times of a generation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pyllama_spec.speculative.controller.base import Span

# In the order in which figures name them.
SOURCES = ("model", "copy", "prediction", "memory", "grammar")


@dataclass(slots=True)
class SourceCounts:
    """The counts of one source."""

    rounds: int = 0  # with a draft of this source; a round has at most one draft
    proposed: int = 0  # tokens of these drafts
    drafted: int = 0  # of those, verified by the target
    accepted: int = 0  # of those, equal to the target's own choice

    def add(self, other: SourceCounts) -> None:
        """Adds the counts of another request."""
        self.rounds += other.rounds
        self.proposed += other.proposed
        self.drafted += other.drafted
        self.accepted += other.accepted

    def as_dict(self) -> dict[str, int | float]:
        """The counts and the rate for JSON; the rate is 0 if nothing was verified."""
        rate = self.accepted / self.drafted if self.drafted else 0.0
        return {**asdict(self), "acceptance_rate": rate}


def source_of(span: Span) -> str:
    """The source of a span's draft: one of SOURCES, or "nobody" without a proposal."""
    if not span.draft.ids:
        return "nobody"
    if span.is_forced:
        return "grammar"
    if span.is_predicted:
        return "prediction"
    if not span.draft.match_length:
        return "model"
    return "memory" if span.draft.is_remembered else "copy"


def sources_as_dict(by_source: Mapping[str, SourceCounts]) -> dict[str, dict[str, int | float]]:
    """The counts of each source, in the order of SOURCES, for JSON."""
    return {name: by_source[name].as_dict() for name in SOURCES if name in by_source}


def sources_in_words(by_source: Mapping[str, Mapping[str, Any]]) -> str:
    """Accepted of drafted tokens by source: "copy 26 of 28, model 2 of 12"."""
    verified = {name: one for name, one in by_source.items() if one["drafted"]}
    if not verified.keys() - {"model"}:
        return ""
    return ", ".join(
        f"{name} {one['accepted']} of {one['drafted']}" for name, one in verified.items()
    )


_SUMS = (
    "rounds", "drafted", "accepted", "asked", "proposed", "saved_error_s",
)  # fmt: skip


@dataclass(slots=True)
class SpeculationStats:
    """The counts of one generation.

    A round is one decode of the target after the prompt. Tokens committed by rounds are
    accepted + rounds, before a stop cuts the last round; the first token comes from the prompt.
    """

    drafter: str = "none"  # the drafter's name
    note: str = ""  # a remark on it, such as why it was chosen; "" for none
    rounds: int = 0  # the number of decodes of the target after the prompt
    drafted: int = 0  # the number of tokens that were proposed and verified, from all sources
    accepted: int = 0  # the number of those that equal the target's own choice
    # The number of rounds that accepted 0, 1, 2 ... tokens.
    accepted_histogram: list[int] = field(default_factory=lambda: [0])
    # The seconds that drafts saved over plain decoding, negative if they lost: for each round the
    # time of as many plain tokens at that depth, less its own. None if the controller knows no
    # costs, as "fixed" does.
    saved_s: float | None = None
    saved_error_s: float = 0.0  # their standard error, by the spread of the target's times
    controller: str = "fixed"  # the name of the controller
    asked: int = 0  # the number of rounds in which the drafter was asked for more than copies
    proposed: int = 0  # the number of proposed tokens; `drafted` of them were verified
    # The same counts for each of SOURCES that proposed something.
    by_source: dict[str, SourceCounts] = field(default_factory=dict)
    # Why the drafter was disabled in the last round; None if it was not, or was asked all the same.
    # A text that it made faster may end so: `state` says what counts.
    reason_off: str | None = None
    # What the drafter raised, with its traceback; None if it did not fail.
    reason_off_error: Exception | None = field(default=None, compare=False, repr=False)
    # How drafts of the drafter are accepted: "exact"; "noise" where the target draws by shared
    # noise; or "distribution" where the drafter draws its tokens and rejection sampling accepts
    # them. Copies and forced text are always accepted exactly.
    acceptance: str = "exact"
    # Why it is "exact" though the request asked for another acceptance; else None.
    why_exact: str | None = None
    # Why the controller did not ask the drafter's model at first though it was not off; "" where it
    # asked, or had no reason.
    why_not_asked: str = ""

    def count_round(self, span: Span, n_accepted: int) -> None:
        """Counts who was asked in a round, and the proposed, verified and accepted tokens."""
        n_drafted, n_proposed = span.n_verified, len(span.draft.ids)
        self.rounds += 1
        self.drafted += n_drafted
        self.accepted += n_accepted
        if not self.asked and span.decision is not None and not self.why_not_asked:
            self.why_not_asked = span.decision.reason
        self.asked += span.asked_of == "drafter"
        if n_proposed:
            self.proposed += n_proposed
            source = source_of(span)
            counts = self.by_source.get(source)
            if counts is None:
                counts = self.by_source[source] = SourceCounts()
            counts.rounds += 1
            counts.proposed += n_proposed
            counts.drafted += n_drafted
            counts.accepted += n_accepted
        _count_in(self.accepted_histogram, n_accepted)

    def add_saved(self, saved_s: float, error_s: float) -> None:
        """Adds the seconds that a round saved, and their error."""
        self.saved_s = (self.saved_s or 0.0) + saved_s
        self.saved_error_s += error_s

    def note_failure(self, reason: str, error: Exception) -> None:
        """Records that the drafter failed and is disabled until the next prompt."""
        self.reason_off, self.reason_off_error = reason, error

    @property
    def state(self) -> str:
        """The state of the drafter: "none", "used", "idle" or "disabled".

        "none": there is no drafter. "disabled": it failed, or it was off as the text ended and had
        given less than one token for two rounds. "idle": the controller did not disable it, and
        nothing was verified: see idle_because. "used": a draft was verified, the drafter's own or a
        copy.
        """
        if self.drafter == "none":
            return "none"
        # A lookup that was asked and found nothing costs next to nothing, on or off.
        is_silent = self.asked > 0 and not self.proposed
        is_off = self.reason_off is not None and not is_silent
        if self.reason_off_error is not None or (
            is_off and 2 * self.accepted < max(self.rounds, 1)
        ):
            return "disabled"
        return "used" if self.drafted else "idle"

    @property
    def idle_because(self) -> str:
        """Why the drafter was idle, in words; "" if it was not."""
        if self.state != "idle":
            return ""
        if not self.rounds:
            return "it was not asked: the text ended with its first token"
        if self.why_not_asked and not self.asked:
            return f"it was not asked: {self.why_not_asked}"
        if not self.asked:
            return "it was not asked"
        if not self.proposed:
            return "it proposed nothing"
        return f"none of its {plural(self.proposed, 'proposed token')} was worth verifying"

    def add(self, other: SpeculationStats) -> None:
        """Adds the counts of another request."""
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.drafter, self.note = other.drafter, other.note
        self.acceptance, self.why_exact = other.acceptance, other.why_exact
        self.why_not_asked = self.why_not_asked or other.why_not_asked
        self.controller = other.controller
        for name in SOURCES:  # not items(): another thread may add a source meanwhile
            if name in other.by_source:
                self.by_source.setdefault(name, SourceCounts()).add(other.by_source[name])
        for i, n in enumerate(other.accepted_histogram):
            _count_in(self.accepted_histogram, i, n)
        if other.saved_s is not None:
            self.saved_s = (self.saved_s or 0.0) + other.saved_s
        self.reason_off = self.reason_off or other.reason_off
        self.reason_off_error = self.reason_off_error or other.reason_off_error

    @property
    def acceptance_rate(self) -> float:
        """Accepted / drafted; 0 without drafts."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def tokens_per_round(self) -> float:
        """(accepted + rounds) / rounds; 0 without rounds."""
        return (self.accepted + self.rounds) / self.rounds if self.rounds else 0.0

    @property
    def saved_in_words(self) -> str:
        """The seconds saved and their error; "" if they are not known."""
        return "" if self.saved_s is None else f"{self.saved_s:.2f} ± {self.saved_error_s:.2f} s"

    def as_dict(self) -> dict[str, Any]:
        """The `speculation` object for JSON."""
        is_disabled = self.state == "disabled"
        idle = self.idle_because and f"{self.drafter} was idle: {self.idle_because}"
        # First what a user reads: was it used, what did it give, who gave it, and why not more.
        return {
            "drafter": self.drafter,
            "state": self.state,
            "saved_s": self.saved_s,
            "saved_error_s": self.saved_error_s,
            "tokens_per_round": self.tokens_per_round,
            "acceptance_rate": self.acceptance_rate,
            "rounds": self.rounds,
            "proposed": self.proposed,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "by_source": sources_as_dict(self.by_source),
            "reason_off": self.reason_off if is_disabled else None,
            "note": "; ".join(filter(None, (self.note, idle))) or None,
            "acceptance": self.acceptance,
            "why_exact": self.why_exact,
            "accepted_histogram": list(self.accepted_histogram),
            "controller": self.controller,
            "asked": self.asked,
        }


def plural(n: int, noun: str) -> str:
    """A number with its noun."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def who_drafted(span: Span) -> str:
    """The source of a span's draft as Step names it: a prediction is copied."""
    source = source_of(span)
    return "copy" if source == "prediction" else source


def _count_in(histogram: list[int], value: int, n: int = 1) -> None:
    if value >= len(histogram):
        histogram += [0] * (value + 1 - len(histogram))
    histogram[value] += n


@dataclass(slots=True)
class Timing:
    """Seconds of one generation, without the time of a stream's consumer."""

    load_s: float = 0.0  # loading the files, the draft's too
    draft_load_s: float = 0.0  # of that the draft: opening it, measuring verify batches for it
    prompt_s: float = 0.0  # the prompt, to its first token
    decode_s: float = 0.0  # all rounds
    draft_s: float = 0.0  # of those in the drafter
    verify_s: float = 0.0  # of those in the target's decode
    n_decoded: int = 0  # the number of tokens that the rounds committed
    # From the call to the start of its computation: waiting for other requests, and for a stream
    # also for its reader.
    queue_s: float = 0.0
    first_token_s: float = 0.0  # from the call to the first token; 0 until there is one

    def plus(self, other: Timing) -> Timing:
        """The sum with a request that continued after this one; the load counts once."""
        names = ("prompt_s", "decode_s", "draft_s", "verify_s", "n_decoded")
        sums = {name: getattr(self, name) + getattr(other, name) for name in names}
        loaded = self if self.load_s else other
        return Timing(load_s=loaded.load_s, draft_load_s=loaded.draft_load_s, **sums)

    @property
    def overhead_s(self) -> float:
        """The rounds' time without drafting and verifying: sampling, bookkeeping, Python."""
        return self.decode_s - self.draft_s - self.verify_s

    @property
    def decode_tps(self) -> float:
        """Tokens per second of the rounds."""
        return self.n_decoded / self.decode_s if self.decode_s > 0 else 0.0

    def as_dict(self) -> dict[str, float]:
        """The `timing` object for JSON."""
        names = (
            "load_s", "draft_load_s", "queue_s", "first_token_s", "prompt_s", "decode_s", "draft_s",
            "verify_s", "overhead_s", "decode_tps",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}
