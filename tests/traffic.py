"""Requests that join and leave a shared round, and the text of each alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from pyllama_spec.drafters import Committed, Draft, Drafter, DraftRequest
from pyllama_spec.engine import Context, Model, Sampler, SamplerParams
from pyllama_spec.errors import CancelledError
from pyllama_spec.speculative import (
    Round,
    SequenceRun,
    SequenceState,
    SpeculationStats,
    StepSampler,
    TokenSampler,
)
from tests.oracles import (
    GREEDY,
    RowExactSampler,
    check_bookkeeping,
    check_step,
    prompt_tokens,
    run_once,
    sampled,
    tiny_context,
)
from tests.scripted import ScriptedDrafter, other

LETTERS = 'root ::= [a-m]+ "." [n-z]*'


class BrokenError(Exception):
    """The error of a failing sampler."""


class FailingSampler(StepSampler):
    """Another sampler that raises at its n-th draw."""

    def __init__(self, inner: TokenSampler, at: int) -> None:
        self.inner, self.n_left = inner, at

    def sample(self, context: Context, i: int) -> int:
        self.n_left -= 1
        if self.n_left < 0:
            raise BrokenError
        return self.inner.sample(context, i)

    def accept(self, token: int, *, generated: bool = True) -> None:
        self.inner.accept(token, generated=generated)


@dataclass(frozen=True)
class Request:
    """A request, and the round in which it arrives.

    Attributes:
        cancel_after, fail_at: the round, or the sampler's draw, at which it ends; None for never.
        is_checked: whether to check O1 at every row, which draws token by token.

    """

    prompt: tuple[int, ...]
    max_tokens: int
    params: SamplerParams = GREEDY
    arrival: int = 0
    cancel_after: int | None = None
    fail_at: int | None = None
    is_checked: bool = False


@dataclass
class Answer:
    """The outcome of a request."""

    tokens: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    error: BaseException | None = None
    stats: SpeculationStats = field(default_factory=SpeculationStats)


def random_requests(n: int, seed: int) -> list[Request]:
    """Requests of every temper, some of which share a beginning."""
    rng = random.Random(seed)
    beginnings = [prompt_tokens(rng.randrange(1, 60), seed=100 * seed + i) for i in range(3)]
    out = []
    for i in range(n):
        begin = rng.choice(beginnings)
        prompt = begin[: rng.randrange(1, len(begin) + 1)]
        prompt += prompt_tokens(rng.randrange(1, 12), seed=1000 * seed + i)
        params = rng.choice([
            GREEDY, sampled(i), sampled(i, temperature=1.5), SamplerParams(seed=i, mirostat=2),
            SamplerParams(temperature=0, grammar=LETTERS),
            SamplerParams(seed=i, temperature=1.0, grammar=LETTERS),
        ])  # fmt: skip
        fate = rng.random()
        out.append(Request(
            tuple(prompt), rng.randrange(1, 40), params, arrival=rng.randrange(0, 3 * n),
            cancel_after=rng.randrange(1, 8) if fate < 0.15 else None,
            fail_at=rng.randrange(0, 20) if 0.15 <= fate < 0.3 else None,
            is_checked=rng.random() < 0.5,
        ))  # fmt: skip
    return out


def alone(model: Model, request: Request, **params: object) -> list[int]:
    with tiny_context(model, **params) as context:
        return run_once(context, None, request.prompt, request.max_tokens, request.params).tokens


class ManyScripts(Drafter):
    """Proposes for each sequence a part that is right and a part that is wrong, or what is none."""

    name = "many-scripts"

    def __init__(self, seed: int, max_draft: int = 8, p_raise: float = 0.0) -> None:
        self.max_draft, self.p_raise = max_draft, p_raise
        self.scripts: dict[int, ScriptedDrafter] = {}
        self._random = random.Random(seed)

    def expect(self, seq: int, text: Sequence[int]) -> None:
        script = self.scripts.setdefault(seq, ScriptedDrafter(text))
        script.reference = list(text)

    def propose_one(self, request: DraftRequest) -> Draft:
        script, rng = self.scripts[request.seq], self._random
        assert script.history(request.seq) == list(request.tokens)
        if rng.random() < self.p_raise:
            raise ValueError("made to fail")
        coming = script.coming(request.seq, rng.randrange(0, request.n_requested + 1))
        k = rng.randrange(0, len(coming) + 1)
        ids = coming[:k] + [other(token) for token in coming[k:]]
        return Draft(rng.choice([ids, coming, coming, [], [*coming[:k], -1, 2**31]]))

    def commit_one(self, done: Committed) -> None:
        self.scripts.setdefault(done.seq, ScriptedDrafter(())).commit_one(done)

    def truncate(self, seq: int, n_keep: int) -> None:
        self.scripts.setdefault(seq, ScriptedDrafter(())).truncate(seq, n_keep)


class Traffic:
    """Serves requests from a round, in an order that a seed decides.

    Args:
        round_: the round that computes; its drafter may be ManyScripts, which learns the texts.
        texts: the text of each request alone.

    """

    def __init__(
        self, round_: Round, requests: Sequence[Request], texts: Sequence[list[int]], seed: int
    ) -> None:
        self.round = round_
        self.requests, self.texts = requests, texts
        self.answers = [Answer() for _ in requests]
        self.n_rounds = self.n_shared = 0
        self._rng = random.Random(seed)
        self._idle = [SequenceState(i) for i in range(round_.target.n_seq_max)]
        self._runs: dict[int, SequenceRun] = {}
        self._begun: dict[int, int] = {}

    def serve(self) -> list[Answer]:
        """Serves until all are done."""
        waiting = sorted(range(len(self.requests)), key=lambda i: self.requests[i].arrival)
        while waiting or self._runs:
            while waiting and self._idle and self.requests[waiting[0]].arrival <= self.n_rounds:
                self._admit(waiting.pop(0))
            self._round()
        return self.answers

    def _admit(self, i: int) -> None:
        request = self.requests[i]
        state = self._idle.pop(self._rng.randrange(len(self._idle)))
        inner = Sampler(self.round.target.model, request.params)
        for token in request.prompt:
            inner.accept(token, generated=False)
        sampler: TokenSampler = RowExactSampler(inner) if request.is_checked else inner
        if request.fail_at is not None:
            sampler = FailingSampler(sampler, request.fail_at)
        run = SequenceRun(state, list(request.prompt), sampler, request.max_tokens)
        drafter = self.round.drafter._drafter
        if isinstance(drafter, ManyScripts):
            drafter.expect(state.seq_id, [*request.prompt, *self.texts[i]])
        self.round.begin(run)
        self.answers[i].stats = run.stats
        self._runs[i], self._begun[i] = run, self.n_rounds

    def _round(self) -> None:
        self.n_rounds += 1
        for i, run in self._runs.items():
            after = self.requests[i].cancel_after
            run.is_cancelled = after is not None and self.n_rounds - self._begun[i] > after
        order = list(self._runs.items())
        self._rng.shuffle(order)
        self.n_shared += len(order) > 1
        numbers = {id(run): i for i, run in order}
        for run, step in self.round.step([run for _, run in order]):
            i = numbers[id(run)]
            answer = self.answers[i]
            answer.tokens += step.tokens
            if step.error is None:
                check_step(step)
            if run.is_over:
                answer.finish_reason, answer.error = run.finish_reason, step.error
                self._idle.append(run.state)
                del self._runs[i]
        for run in self._runs.values():
            if run.n_generated:
                check_bookkeeping(self.round.target, run.state)

    def check(self) -> None:
        """Every text is what it would have been alone, up to where it was cancelled or failed."""
        for request, text, answer in zip(self.requests, self.texts, self.answers, strict=True):
            if request.cancel_after is None and request.fail_at is None:
                assert answer.error is None
            if answer.error is None:
                assert answer.finish_reason is not None
                assert answer.tokens == text
            else:
                assert isinstance(answer.error, (CancelledError, BrokenError))
                assert answer.tokens == text[: len(answer.tokens)]
