"""Generates the target's answers, many in parallel, on the same round as requests.

A task is one or two requests on a sequence: the user's turn, if the target writes it, and the
answer. The prompt that all tasks share is decoded once per sequence; a longer rest has a decode of
its own, a shorter one is read a token a round beside the others. So a text comes out the same
whatever runs beside it, on the CPU with types whose rows do not depend on the batch, and an
interrupted run can continue where it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pyllama_spec.drafters import Committed, Drafter
from pyllama_spec.engine import Context, Model
from pyllama_spec.speculative import Round, SequenceRun, SequenceState, Step, StepSampler
from pyllama_spec.train.config import CorpusConfig
from pyllama_spec.train.corpus.quality import ends_in_loop
from pyllama_spec.train.corpus.tasks import Task, TaskSource
from pyllama_spec.train.errors import TrainError

_BLOCK = 64


TopK = tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]
"""The ids of the likeliest tokens, [k], and their log-probabilities in the whole distribution.

The likeliest is first; of equal ones the smaller id.
"""


def top_k_of(logits: npt.NDArray[np.float32], k: int) -> TopK:
    """The k likeliest tokens of a row, [n_vocab] float32, or all if there are fewer."""
    highest = logits.max()  # nan where one of them is
    if not np.isfinite(highest):
        raise TrainError(
            f"the target's logits are not numbers ({highest}): its file is damaged; download it "
            "again"
        )
    k = min(k, len(logits))
    ids = np.flatnonzero(logits >= np.float32(_bound(logits, k))).astype(np.int64, copy=False)
    if len(ids) > k:
        # Equal logits at the edge: the smaller ids stay, whatever the partition does with them.
        values = logits[ids]
        edge = np.partition(values, len(ids) - k)[len(ids) - k]
        above = ids[values > edge]
        ids = np.concatenate((above, ids[values == edge][: k - len(above)]))
    ids = ids[np.lexsort((ids, -logits[ids]))]
    log_sum = highest + np.log(np.exp(logits - highest).sum())
    return ids, logits[ids] - log_sum


def _bound(logits: npt.NDArray[np.float32], k: int) -> float:
    """A value that at least k logits reach: the k-th largest of the blocks' maxima.

    Sorting a whole vocabulary takes several times longer than the rest of a step in Python.
    """
    n_blocks = len(logits) // _BLOCK
    if n_blocks < k:
        return -np.inf
    blocks = logits[: n_blocks * _BLOCK].reshape(_BLOCK, n_blocks)
    return float(np.partition(blocks.max(axis=0), n_blocks - k)[n_blocks - k])


def draw(top: TopK, temperature: float, rng: np.random.Generator) -> int:
    """Draws a token of the likeliest ones; the first one at temperature 0.

    The largest of log p / temperature + Gumbel noise has the distribution of a draw (Gumbel-max).
    """
    ids, log_p = top
    if temperature <= 0:
        return int(ids[0])
    return int(ids[int(np.argmax(log_p / temperature + rng.gumbel(size=len(ids))))])


# Longer rests of prompts than that have a decode of their own.
_MAX_STEPWISE = 32
# Looking for a loop costs more than a token; once in this many it is cheap.
_LOOP_EVERY = 16
_PREFILL = 512
# Tokens are drawn from so many likeliest ones, in user turns at this temperature.
_N_CANDIDATES, _USER_TEMPERATURE = 64, 1.0


@dataclass(slots=True)
class TargetFeatures:
    """The target's features for the tokens of one sequence; see features.py."""

    rows: npt.NDArray[np.float16]  # [n, n_layers * n_embd] float16 layer inputs, side by side
    top_ids: npt.NDArray[np.uint32]  # [n, k] uint32, the likeliest next tokens after each one
    # [n, k] float16, their log-probabilities; -inf if there is none
    top_log_p: npt.NDArray[np.float16]


def empty_features(n: int, width: int, k: int) -> TargetFeatures:
    """Empty TargetFeatures of n tokens."""
    return TargetFeatures(
        np.zeros((n, width), np.float16),
        np.zeros((n, k), np.uint32),
        np.full((n, k), -np.inf, np.float16),
    )


def token_bytes(width: int, k: int) -> int:
    """Bytes of one token's TargetFeatures: float16 rows, uint32 ids, float16 log-probabilities."""
    return 2 * width + 6 * k


def set_top(features: TargetFeatures, i: int, top: TopK) -> None:
    """Records the distribution after token i."""
    ids, log_p = top
    n = min(len(ids), features.top_ids.shape[1])
    features.top_ids[i, :n] = ids[:n]
    features.top_log_p[i, :n] = log_p[:n]


@dataclass(frozen=True, slots=True)
class Generated:
    """A finished sequence."""

    number: int  # the number of its task
    tokens: list[int]  # the ids of prompt and answer
    n_prompt: int  # the index at which the answer begins
    n_user: int  # the index at which the user turn by the target begins; n_prompt if there is none
    temperature: float  # the temperature of the answer
    # "stop", "length", "loop" (only its first turns are kept), or, if there is no answer, "user"
    finish: str
    features: TargetFeatures | None  # the features of its tokens, if requested


class _Collector(Drafter):
    """Records the target's rows of each sequence, and proposes nothing."""

    name = "features"
    max_draft = 0

    def __init__(self, layers: tuple[int, ...], n_ctx: int, width: int, n_top: int) -> None:
        self.target_layers = layers
        self._n_ctx, self._width, self._n_top = n_ctx, width, n_top
        self._features: dict[int, TargetFeatures] = {}

    def of(self, seq: int) -> TargetFeatures | None:
        """The features of a sequence so far; None if none are recorded."""
        if not self.target_layers:
            return None
        if seq not in self._features:
            self._features[seq] = empty_features(self._n_ctx, self._width, self._n_top)
        return self._features[seq]

    def take(self, seq: int, n: int, n_shared: int) -> TargetFeatures | None:
        """Returns the features of the first n tokens, and keeps a copy of the shared rows."""
        features = self.of(seq)
        if features is None:
            return None
        self._features[seq] = empty_features(self._n_ctx, self._width, self._n_top)
        self._features[seq].rows[:n_shared] = features.rows[:n_shared]
        return TargetFeatures(features.rows[:n], features.top_ids[:n], features.top_log_p[:n])

    def commit(self, done: Sequence[Committed]) -> None:
        """Records rows; converts those of all sequences to float16 at once."""
        with_features = [c for c in done if c.features]
        if not with_features:
            return
        layers = zip(*(c.features for c in with_features), strict=True)
        rows, start = join_rows([np.concatenate(parts) for parts in layers]), 0
        for c in with_features:
            n, features = len(c.features[0]), self.of(c.seq)
            if features is not None:
                features.rows[c.first_row : c.first_row + n] = rows[start : start + n]
            start += n


class _TaskSampler(StepSampler):
    """Draws from a row's likeliest tokens, and records them where they are to be learned."""

    def __init__(
        self, task: Task, temperature: float, state: SequenceState, features: TargetFeatures | None
    ) -> None:
        self._task, self._temperature = task, temperature
        self._state, self._features = state, features

    def sample(self, context: Context, i: int) -> int:
        """Samples a token with the task's own random numbers."""
        top = top_k_of(context.logits(i), _N_CANDIDATES)
        if self._features is not None:
            set_top(self._features, len(self._state.tokens) - 1, top)
        return draw(top, self._temperature, self._task.rng)


@dataclass(slots=True, eq=False)
class _Place:
    """A sequence of the context with its current task."""

    state: SequenceState
    task: Task | None = None
    run: SequenceRun | None = None
    n_prompt: int = 0  # see Generated
    n_user: int = 0
    in_user: bool = False  # whether the target is writing the user turn now


class Generator:
    """Runs tasks in parallel."""

    def __init__(
        self,
        model: Model,
        source: TaskSource,
        config: CorpusConfig,
        *,
        target_layers: tuple[int, ...] = (),
        n_top: int = 0,
        n_threads: int | None = None,
    ) -> None:
        self._is_eog, self._source, self._config = model.vocab.is_eog, source, config
        n, n_batch = config.n_parallel, max(_PREFILL, config.n_parallel)
        # Flash attention: nothing here has to be equal to another decode bit by bit, and it is
        # a quarter faster.
        self._context = Context(
            model, n_ctx=n * config.n_ctx, n_seq_max=n, n_batch=n_batch, n_ubatch=n_batch,
            n_outputs_max=n, n_threads=n_threads, flash_attn=True, target_layers=target_layers,
        )  # fmt: skip
        width = len(target_layers) * model.info.n_embd
        self._collector = _Collector(target_layers, config.n_ctx, width, n_top)
        self._round = Round(self._context, self._collector, max_rows=n, max_stepwise=_MAX_STEPWISE)
        self._places = [_Place(SequenceState(seq)) for seq in range(n)]

    @property
    def n_begun(self) -> int:
        """The answer tokens of running sequences so far."""
        busy = [p for p in self._places if p.task is not None and not p.in_user]
        return sum(max(len(p.state.tokens) - p.n_prompt, 0) for p in busy)

    def run(self, first: int) -> Iterator[Generated | None]:
        """Generates tasks first, first + 1, ... and yields them as they end, in any order."""
        number, is_over = first, False
        while True:
            for place in self._places:
                if place.task is None and not is_over:
                    task = self._source.task(number)
                    number, is_over = number + 1, task is None
                    if task is not None:
                        self._begin(place, task)
            running = {id(p.run): p for p in self._places if p.run is not None}
            if not running:
                return
            steps = self._round.step([p.run for p in running.values() if p.run is not None])
            yield None
            for run, step in steps:
                failure = step.error or run.stats.reason_off_error
                if failure is not None:  # without its rows a text is useless
                    raise failure
                finish = self._finish(running[id(run)], step)
                if finish is not None:
                    yield self._end(running[id(run)], finish)

    def close(self) -> None:
        """Frees the context."""
        self._context.close()

    def _begin(self, place: _Place, task: Task) -> None:
        """Starts a task with its prompt, after the prefix that all tasks share."""
        shared = self._source.shared
        # Always cut there, so that what follows is read in the same pieces whatever ran before.
        if shared:
            common = SequenceRun(place.state, [*shared, shared[-1]])
            self._round.begin(common)
            while place.state.n_decoded < len(shared):
                del place.state.tokens[len(shared) :]
                self._round.step([common])
        else:
            self._round.sequences.forget(place.state)
        place.task, place.n_prompt, place.n_user = task, len(task.prompt), len(task.prompt)
        place.in_user = task.writes_user
        self._ask(place, task.prompt)

    def _ask(self, place: _Place, prompt: Sequence[int]) -> None:
        """Starts to generate after a prompt: the user's turn, or the answer."""
        config, task = self._config, place.task
        assert task is not None
        n_left = config.n_ctx - len(prompt)
        if place.in_user:
            features, temperature = None, _USER_TEMPERATURE
            n_left = min(config.max_user, n_left - len(self._source.after_user))
        else:
            features, temperature = self._collector.of(place.state.seq_id), task.temperature
        sampler = _TaskSampler(task, temperature, place.state, features)
        place.run = SequenceRun(place.state, list(prompt), sampler, max(n_left, 1))
        self._round.begin(place.run)

    def _finish(self, place: _Place, step: Step) -> str | None:
        """The reason why the task ends; None if it continues."""
        tokens = place.state.tokens
        if place.in_user:
            return self._finish_user(place, step)
        if step.finish_reason is not None:
            return step.finish_reason
        is_due = (len(tokens) - place.n_prompt) % _LOOP_EVERY == 0
        return "loop" if is_due and ends_in_loop(tokens[place.n_prompt :]) else None

    def _finish_user(self, place: _Place, step: Step) -> str | None:
        """Switches to the answer when the user's turn has ended."""
        config, after = self._config, self._source.after_user
        tokens = list(place.state.tokens)
        n = len(tokens) - place.n_user
        if self._is_eog(tokens[-1]) or tokens[-1] in after[:1]:
            tokens.pop()
        elif n % _LOOP_EVERY == 0 and ends_in_loop(tokens[place.n_user :]):
            return "user"
        elif step.finish_reason is None:
            return None  # a longer one is cut off: people send such texts too
        # Without room for an answer there is nothing to learn from.
        n_left = config.n_ctx - len(tokens) - len(after)
        if len(tokens) - place.n_user < config.min_user or n_left < config.min_answer:
            return "user"
        tokens.extend(after)
        place.n_prompt, place.in_user = len(tokens), False
        self._ask(place, tokens)
        return None

    def _end(self, place: _Place, finish: str) -> Generated:
        assert place.task is not None
        tokens = list(place.state.tokens)
        features = self._collector.take(place.state.seq_id, len(tokens), len(self._source.shared))
        done = Generated(
            place.task.number, tokens, place.n_prompt, place.n_user, place.task.temperature,
            finish, features,
        )  # fmt: skip
        place.task = place.run = None
        return done


def join_rows(layers: Sequence[npt.NDArray[np.float32]]) -> npt.NDArray[np.float16]:
    """Joins layer inputs as float16, clipped to its range: [n, n_layers * n_embd]."""
    rows: npt.NDArray[np.float32] = np.concatenate(list(layers), axis=1)
    limit = np.float32(np.finfo(np.float16).max)
    return np.clip(rows, -limit, limit).astype(np.float16)
