"""Figures from runs: totals, spreads, acceptance by depth.

A rate is always total tokens / total seconds, never a mean of rates. What varies between repeats is
given as median, minimum and maximum.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyllama_spec.bench.config import BenchConfig
from pyllama_spec.bench.sides import Run
from pyllama_spec.speculative.stats import SpeculationStats, Timing


@dataclass(frozen=True, slots=True)
class Totals:
    """The sums over the texts of one side; see Run."""

    n_texts: int
    timing: Timing
    stats: SpeculationStats
    cpu_s: float
    rounds_cpu_s: float

    @property
    def n_tokens(self) -> int:
        """The tokens committed by rounds: all but the first of each text."""
        return self.timing.n_decoded

    @property
    def tps(self) -> float | None:
        """Tokens per second of the rounds; None without any."""
        return ratio(self.n_tokens, self.timing.decode_s)

    @property
    def cpu_tps(self) -> float | None:
        """Tokens of the rounds per second of processor time; None without any."""
        return ratio(self.n_tokens, self.rounds_cpu_s)

    @property
    def end_to_end_tps(self) -> float | None:
        """All tokens per second, with the prompt's seconds and the first token."""
        return ratio(self.n_tokens + self.n_texts, self.timing.prompt_s + self.timing.decode_s)


def total(runs: Iterable[Run]) -> Totals:
    """The sums of some runs."""
    all_runs, stats = list(runs), SpeculationStats()
    for run in all_runs:
        stats.add(run.stats)
    return Totals(
        n_texts=len(all_runs),
        timing=functools.reduce(Timing.plus, (run.timing for run in all_runs), Timing()),
        stats=stats,
        cpu_s=sum(run.cpu_s for run in all_runs),
        rounds_cpu_s=sum(run.rounds_cpu_s for run in all_runs),
    )


@dataclass(frozen=True, slots=True)
class Spread:
    """The median and range of some values."""

    median: float
    min: float
    max: float


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


def compare(pairs: Iterable[Pair]) -> Comparison:
    """The totals of both sides."""
    all_pairs = list(pairs)
    return Comparison(total(p.plain for p in all_pairs), total(p.spec for p in all_pairs))


def find_fork(pairs: Sequence[Pair]) -> int | None:
    """The place of the first difference in the first pair of unequal texts; None without any."""
    for pair in pairs:
        if not pair.is_same:
            a, b = pair.plain.tokens, pair.spec.tokens
            at = (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
            return next(at, min(len(a), len(b)))
    return None


@dataclass(frozen=True, slots=True)
class PromptResult:
    """The measurements of one prompt: a pair for each repeat, and the first fork of its texts."""

    id: str
    category: str
    n_prompt: int
    pairs: tuple[Pair, ...]
    fork: int | None = None

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
class Setup:
    """How the benchmark ran, in addition to its configuration.

    `draft` is its name in tables: its file, else the drafter; "auto: ..." where auto chose it.
    """

    target: str
    drafter: str
    draft: str
    n_ctx: int
    n_threads: int
    max_draft: int
    provenance: dict[str, Any]
    notes: tuple[str, ...] = ()
    placement: dict[str, int] = field(default_factory=dict)
    draft_placement: dict[str, int] | None = None


@dataclass(frozen=True, slots=True)
class BenchResult:
    """A benchmark's figures.

    Attributes:
        config: the configuration of the run.
        setup: how it ran.
        prompts: in the file's order; after an interruption, only prompts with a pair.
        is_interrupted: Ctrl-C ended it.
        failure: the error that ended it, if any; the figures up to it are kept.
        span: when it began and ended, and the load average then.
        others: the results of further drafts against the same plain texts.
    """

    config: BenchConfig
    setup: Setup
    prompts: tuple[PromptResult, ...]
    is_interrupted: bool = False
    failure: str | None = None
    span: dict[str, Any] = field(default_factory=dict)
    others: tuple[BenchResult, ...] = ()

    @property
    def pairs(self) -> list[Pair]:
        """All texts of all prompts."""
        return [pair for prompt in self.prompts for pair in prompt.pairs]

    @property
    def comparison(self) -> Comparison:
        """The totals over everything."""
        return compare(self.pairs)

    @property
    def speedups(self) -> Spread | None:
        """The spread of the speed-ups of the repeats, each over all prompts."""
        return spread(one.speedup for one in repeats_of(self.prompts))

    @property
    def categories(self) -> dict[str, Comparison]:
        """The totals by category, in the file's order."""
        pairs: dict[str, list[Pair]] = {}
        for prompt in self.prompts:
            pairs.setdefault(prompt.category, []).extend(prompt.pairs)
        return {name: compare(some) for name, some in pairs.items()}


@dataclass(frozen=True, slots=True)
class Depth:
    """The drafts with at least `depth` tokens.

    All, those whose earlier tokens were accepted, and those whose token there was accepted too.
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
