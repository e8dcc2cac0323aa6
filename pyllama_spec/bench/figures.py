"""Figures from runs: totals, spreads, acceptance by depth.

A rate is always total tokens / total seconds, never a mean of rates. What varies between repeats is
given as median, minimum and maximum.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyllama_spec.bench.peer import PeerRun
from pyllama_spec.bench.sides import Run
from pyllama_spec.engine.transfers import NO_TRANSFERS, Transfers
from pyllama_spec.speculative.draft_sources import SourceCounts, add_sources, sources_as_dict
from pyllama_spec.speculative.realised_gain import RealisedGain


@dataclass(frozen=True, slots=True)
class Totals:
    """The sums over the texts of one side.

    Attributes:
        n_texts: the number of texts.
        n_tokens: the tokens committed by rounds: all but the first of each text.
        prompt_s, decode_s, draft_s, verify_s, cpu_s, rounds_cpu_s: see Run.
        transfers: the transfers between host and devices during the rounds.
        rounds, drafted, accepted: see SpeculationStats.
        rounds_without_draft: the number of rounds in which nothing was drafted.

    """

    n_texts: int = 0
    n_tokens: int = 0
    prompt_s: float = 0.0
    decode_s: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0
    cpu_s: float = 0.0
    rounds_cpu_s: float = 0.0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    rounds_without_draft: int = 0
    transfers: Transfers = NO_TRANSFERS

    @property
    def rest_s(self) -> float:
        """The rounds' time apart from drafting and verifying: sampling, bookkeeping, Python."""
        return self.decode_s - self.draft_s - self.verify_s

    @property
    def tps(self) -> float | None:
        """Tokens per second of the rounds; None without any."""
        return self.n_tokens / self.decode_s if self.decode_s > 0 else None

    @property
    def cpu_tps(self) -> float | None:
        """Tokens of the rounds per second of processor time; None without any."""
        return self.n_tokens / self.rounds_cpu_s if self.rounds_cpu_s > 0 else None

    @property
    def end_to_end_tps(self) -> float | None:
        """All tokens per second, with the prompt's seconds and the first token."""
        seconds = self.prompt_s + self.decode_s
        return (self.n_tokens + self.n_texts) / seconds if seconds > 0 else None

    @property
    def acceptance_rate(self) -> float:
        """Accepted / drafted; 0 without drafts."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def tokens_per_round(self) -> float:
        """(accepted + rounds) / rounds; 0 without rounds."""
        return (self.accepted + self.rounds) / self.rounds if self.rounds else 0.0


def total(runs: Iterable[Run]) -> Totals:
    """The sums of some runs."""
    all_runs = list(runs)
    rounds = [one for run in all_runs for one in run.rounds]
    return Totals(
        n_texts=len(all_runs),
        n_tokens=sum(run.n_decoded for run in all_runs),
        prompt_s=sum(run.prompt_s for run in all_runs),
        decode_s=sum(run.decode_s for run in all_runs),
        draft_s=sum(run.draft_s for run in all_runs),
        verify_s=sum(run.verify_s for run in all_runs),
        cpu_s=sum(run.cpu_s for run in all_runs),
        rounds_cpu_s=sum(run.rounds_cpu_s for run in all_runs),
        rounds=len(rounds),
        drafted=sum(drafted for drafted, _ in rounds),
        accepted=sum(accepted for _, accepted in rounds),
        rounds_without_draft=sum(drafted == 0 for drafted, _ in rounds),
        transfers=functools.reduce(
            Transfers.plus, (run.transfers for run in all_runs), NO_TRANSFERS
        ),
    )


@dataclass(frozen=True, slots=True)
class Spread:
    """The median and range of some values."""

    median: float
    low: float
    high: float


def spread(values: Iterable[float | None]) -> Spread | None:
    """The median, minimum and maximum of the values; None without values."""
    measured = [value for value in values if value is not None]
    return Spread(statistics.median(measured), min(measured), max(measured)) if measured else None


def ratio(a: float | None, b: float | None) -> float | None:
    """The quotient a / b; None where one is missing or b is 0."""
    return a / b if a is not None and b else None


@dataclass(frozen=True, slots=True)
class Pair:
    """One text of both sides, generated one directly after the other."""

    plain: Run
    spec: Run

    @property
    def is_same(self) -> bool:
        """Whether both texts have equal token ids."""
        return self.plain.tokens == self.spec.tokens


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both sides over the same texts."""

    plain: Totals
    spec: Totals

    @property
    def speedup(self) -> float | None:
        """The ratio of the rounds' rates."""
        return ratio(self.spec.tps, self.plain.tps)

    @property
    def cpu_speedup(self) -> float | None:
        """The ratio of the rates by processor time, which other programs disturb less.

        With several threads it includes waiting ones, since they spin.
        """
        return ratio(self.spec.cpu_tps, self.plain.cpu_tps)

    @property
    def end_to_end_speedup(self) -> float | None:
        """The ratio of the rates with the prompts."""
        return ratio(self.spec.end_to_end_tps, self.plain.end_to_end_tps)

    @property
    def prompt_cost(self) -> float | None:
        """Seconds for the prompts, speculative over plain: 1 where the draft costs nothing."""
        return ratio(self.spec.prompt_s, self.plain.prompt_s)


def compare(pairs: Iterable[Pair]) -> Comparison:
    """The totals of both sides."""
    all_pairs = list(pairs)
    return Comparison(total(p.plain for p in all_pairs), total(p.spec for p in all_pairs))


@dataclass(frozen=True, slots=True)
class Fork:
    """The first difference between the two texts of a prompt.

    Attributes:
        repeat: the first repeat in which it was seen, from 0.
        position: index of the first token that differs.
        plain_token, spec_token: the two tokens; None where a text had ended.
        top2_gap: the distance between plain decoding's two largest logits there. Near 0, rounding
            decided. None if a second run did not show it.

    """

    repeat: int
    position: int
    plain_token: int | None
    spec_token: int | None
    top2_gap: float | None = None


def find_fork(pairs: Sequence[Pair]) -> Fork | None:
    """The first difference; None if all texts are equal."""
    for repeat, pair in enumerate(pairs):
        if pair.is_same:
            continue
        a, b = pair.plain.tokens, pair.spec.tokens
        at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
        at = min(len(a), len(b)) if at is None else at
        return Fork(repeat, at, a[at] if at < len(a) else None, b[at] if at < len(b) else None)
    return None


@dataclass(frozen=True, slots=True)
class PromptResult:
    """The measurements of one prompt.

    Attributes:
        id, category: the id and category of the prompt's line.
        n_prompt: tokens of the prompt.
        pairs: one per repeat.
        fork: where the texts differ first; None if they are equal.
        peer: the peer's answers.

    """

    id: str
    category: str
    n_prompt: int
    pairs: tuple[Pair, ...]
    fork: Fork | None = None
    peer: tuple[PeerRun, ...] = ()

    @property
    def comparison(self) -> Comparison:
        """The totals over the repeats."""
        return compare(self.pairs)

    @property
    def speedups(self) -> Spread | None:
        """The spread of the speed-ups of the pairs."""
        return spread(compare([pair]).speedup for pair in self.pairs)


def repeats_of(prompts: Sequence[PromptResult]) -> list[Comparison]:
    """One comparison over all prompts per repeat, without an interrupted repeat."""
    n = min((len(prompt.pairs) for prompt in prompts), default=0)
    return [compare(prompt.pairs[i] for prompt in prompts) for i in range(n)]


@dataclass(frozen=True, slots=True)
class Depth:
    """The counts for the i-th token of drafts: reached, drafted, accepted.

    Attributes:
        depth: i, from 1.
        drafted: the number of drafts with at least i tokens.
        reached: the number of those whose earlier tokens were all accepted.
        accepted: the number of those whose token i was accepted too.

    """

    depth: int
    drafted: int
    reached: int
    accepted: int

    @property
    def rate(self) -> float | None:
        """P(accepted | reached); None where no round reached the depth."""
        return ratio(self.accepted, self.reached)

    @property
    def rate_of_drafted(self) -> float | None:
        """P(accepted), with all before it. Summed over depths, plus 1: tokens of a full round."""
        return ratio(self.accepted, self.drafted)


def acceptance_by_depth(runs: Iterable[Run]) -> list[Depth]:
    """The depths from 1 to the longest draft.

    A round cut by an end token is left out: nothing judged the tokens after it.
    """
    rounds: list[tuple[int, int]] = []
    for run in runs:
        rounds += run.rounds[:-1] if run.is_stopped else run.rounds
    deepest = max((drafted for drafted, _ in rounds), default=0)
    return [
        Depth(
            depth,
            drafted=sum(drafted >= depth for drafted, _ in rounds),
            reached=sum(drafted >= depth and accepted >= depth - 1 for drafted, accepted in rounds),
            accepted=sum(accepted >= depth for _, accepted in rounds),
        )
        for depth in range(1, deepest + 1)
    ]


def accepted_histogram(runs: Iterable[Run]) -> list[int]:
    """The number of rounds that accepted 0, 1, 2 ... tokens, see SpeculationStats."""
    accepted = [one for run in runs for _, one in run.rounds]
    return [accepted.count(n) for n in range(max(accepted, default=0) + 1)]


def by_source(runs: Iterable[Run]) -> dict[str, dict[str, int | float]]:
    """Proposed, drafted and accepted tokens of each source, as in SpeculationStats."""
    sums: dict[str, SourceCounts] = {}
    for run in runs:
        add_sources(sums, run.by_source)
    return sources_as_dict(sums)


def realised_gain(runs: Iterable[Run]) -> RealisedGain:
    """The gain of the drafts of some runs by the clock, in rounds of plain decoding."""
    gain = RealisedGain()
    for run in runs:
        gain.add(run.gain_realised)
    return gain
