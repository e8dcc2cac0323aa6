"""Many sequences at once, decoded in one batch per step, each with a place that is refilled.

The prompt that all sequences share is decoded once per place. A longer rest has a decode of its
own, so that how its rows are computed does not depend on what else runs; after that every step
feeds one token per place. So a sequence comes out the same whatever runs beside it, on the CPU with
types whose rows do not depend on the batch, and an interrupted run can go on where it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pyllama_spec.engine import Batch, Context, Model
from pyllama_spec.train.config import CorpusConfig
from pyllama_spec.train.quality import ends_in_loop
from pyllama_spec.train.tasks import Task, TaskSource
from pyllama_spec.train.top import Top, draw, top_of

# Longer prompts than that have a decode of their own.
_MAX_STEPWISE = 32
# Looking for a loop costs more than a token; once in this many it is cheap.
_LOOP_EVERY = 16
_PREFILL = 512


@dataclass(slots=True)
class Features:
    """What the target says of the tokens of one sequence; see docs of features.py.

    Attributes:
        rows: [n, n_layers * n_embd] float16 layer inputs, side by side.
        top_ids: [n, k] uint32, the likeliest tokens after each one.
        top_log_p: [n, k] float16, their log-probabilities; -inf where there is none.

    """

    rows: npt.NDArray[np.float16]
    top_ids: npt.NDArray[np.uint32]
    top_log_p: npt.NDArray[np.float16]


def empty_features(n: int, width: int, k: int) -> Features:
    """Features of n tokens, of which nothing is known yet."""
    return Features(
        np.zeros((n, width), np.float16),
        np.zeros((n, k), np.uint32),
        np.full((n, k), -np.inf, np.float16),
    )


def set_top(features: Features, i: int, top: Top) -> None:
    """Notes the distribution after token i."""
    n = min(len(top.ids), features.top_ids.shape[1])
    features.top_ids[i, :n] = top.ids[:n]
    features.top_log_p[i, :n] = top.log_p[:n]


@dataclass(frozen=True, slots=True)
class Generated:
    """A finished sequence.

    Attributes:
        number: of its task.
        tokens: prompt and answer.
        n_prompt: where the answer begins.
        n_user: where the user's turn begins that the target wrote; n_prompt where it wrote none.
        temperature: of the answer.
        finish: "stop", "length", "loop" (its first turns are there), or why there is no answer:
            "user".
        features: of its tokens, where they were asked for.

    """

    number: int
    tokens: list[int]
    n_prompt: int
    n_user: int
    temperature: float
    finish: str
    features: Features | None


@dataclass(slots=True)
class _Place:
    """A sequence of the context and what runs in it."""

    seq: int
    task: Task | None = None
    tokens: list[int] = field(default_factory=list)
    # How many of the tokens are decoded, and how many were fixed before the answer.
    n_done: int = 0
    n_prompt: int = 0
    n_user: int = 0
    in_user: bool = False
    has_shared: bool = False
    features: Features | None = None


class Generator:
    """Runs tasks.

    Args:
        model: the target.
        source: of the tasks.
        config: lengths and temperatures.
        target_layers: layer inputs to keep of every token; () keeps no features.
        n_top: likeliest tokens to keep of every distribution.
        n_threads: CPU threads.

    """

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
        self._model, self._source, self._config = model, source, config
        self._layers, self._n_top = target_layers, n_top
        n = config.n_parallel
        # Flash attention: nothing here has to be equal to another decode bit by bit, and it is
        # a quarter faster.
        self._context = Context(
            model, n_ctx=n * config.n_ctx, n_seq_max=n, n_batch=max(_PREFILL, n),
            n_ubatch=max(_PREFILL, n), n_outputs_max=n, n_threads=n_threads, flash_attn=True,
            target_layers=target_layers,
        )  # fmt: skip
        self._batch = Batch(self._context.n_batch)
        self._places = [_Place(seq) for seq in range(n)]
        self._width = len(target_layers) * model.info.n_embd
        self._shared_rows: npt.NDArray[np.float16] | None = None

    def run(self, first: int) -> Iterator[Generated | None]:
        """Generates tasks first, first + 1, ... and yields them as they end, in any order.

        Args:
            first: the number of the first task.

        Yields:
            None after every decode, and every sequence that ends with it.

        """
        number, is_over = first, False
        while True:
            for place in self._places:
                if place.task is None and not is_over:
                    task = self._source.task(number)
                    number, is_over = number + 1, task is None
                    if task is not None:
                        self._begin(place, task)
            busy = [place for place in self._places if place.task is not None]
            if not busy:
                return
            self._step(busy)
            yield None
            for place in busy:
                finish = self._finish(place)
                if finish is not None:
                    yield self._end(place, finish)

    def close(self) -> None:
        """Frees the context."""
        self._context.close()

    def _begin(self, place: _Place, task: Task) -> None:
        """Brings the place to the last token of the prompt, which the next step feeds."""
        shared, memory = self._source.shared, self._context.memory
        place.task, place.tokens = task, list(task.prompt)
        place.n_prompt = place.n_user = len(task.prompt)
        place.in_user = task.writes_user
        if self._layers:
            place.features = empty_features(self._config.n_ctx, self._width, self._n_top)
        if not place.has_shared or not memory.rollback(place.seq, len(shared)):
            memory.remove(place.seq)
            self._prefill(place, 0, len(shared))
            place.has_shared = True
            if self._shared_rows is None and place.features is not None:
                self._shared_rows = place.features.rows[: len(shared)].copy()
        elif place.features is not None and self._shared_rows is not None:
            place.features.rows[: len(shared)] = self._shared_rows
        place.n_done = len(shared)
        if len(task.prompt) - 1 - len(shared) > _MAX_STEPWISE:
            self._prefill(place, len(shared), len(task.prompt) - 1)
            place.n_done = len(task.prompt) - 1

    def _prefill(self, place: _Place, start: int, end: int) -> None:
        for first in range(start, end, _PREFILL):
            part = place.tokens[first : min(first + _PREFILL, end)]
            self._batch.clear()
            self._batch.extend(part, first, place.seq)
            self._context.decode(self._batch)
            if place.features is not None:
                rows = self._rows()
                place.features.rows[first : first + len(part)] = rows

    def _rows(self) -> npt.NDArray[np.float16]:
        """The layer inputs of the last batch, side by side: [n_tokens, width] float16."""
        return join_rows([self._context.layer_input(layer) for layer in self._layers])

    def _step(self, busy: list[_Place]) -> None:
        """Feeds the next token of every place; where it is the last one, draws the next."""
        batch, context = self._batch, self._context
        batch.clear()
        for place in busy:
            is_last = place.n_done == len(place.tokens) - 1
            batch.add(place.tokens[place.n_done], place.n_done, place.seq, output=is_last)
        context.decode(batch)
        rows = self._rows() if self._layers else None
        for i, place in enumerate(busy):
            is_last = place.n_done == len(place.tokens) - 1
            features = place.features
            if features is not None and rows is not None:
                features.rows[place.n_done] = rows[i]
            if is_last:
                top = top_of(context.logits(i), self._config.n_candidates)
                if features is not None and not place.in_user:
                    set_top(features, place.n_done, top)
                place.tokens.append(self._draw(place, top))
            place.n_done += 1

    def _draw(self, place: _Place, top: Top) -> int:
        assert place.task is not None
        if place.in_user:
            return draw(top, self._config.user_temperature, place.task.rng)
        return draw(top, place.task.temperature, place.task.rng)

    def _finish(self, place: _Place) -> str | None:
        """Why the place's sequence is at its end; None if it is not."""
        config, tokens = self._config, place.tokens
        if place.n_done != len(tokens) - 1:  # a fixed token comes next
            return None
        if place.in_user:
            return self._finish_user(place)
        n = len(tokens) - place.n_prompt
        if n <= 0:
            return None
        if self._model.vocab.is_eog(tokens[-1]):
            return "stop"
        if n % _LOOP_EVERY == 0 and ends_in_loop(tokens[place.n_prompt :]):
            return "loop"
        return "length" if len(tokens) >= config.n_ctx else None

    def _finish_user(self, place: _Place) -> str | None:
        config, tokens, after = self._config, place.tokens, self._source.after_user
        n = len(tokens) - place.n_user
        if n == 0:
            return None
        if self._model.vocab.is_eog(tokens[-1]) or tokens[-1] == after[0]:
            tokens.pop()
        elif n % _LOOP_EVERY == 0 and ends_in_loop(tokens[place.n_user :]):
            return "user"
        elif n < config.max_user and len(tokens) + len(after) < config.n_ctx:
            return None  # a longer one is cut off: people send such texts too
        # Without room for an answer there is nothing to learn from.
        room = config.n_ctx - len(tokens) - len(after)
        if len(tokens) - place.n_user < config.min_user or room < config.min_answer:
            return "user"
        tokens.extend(after)
        place.n_prompt, place.in_user = len(tokens), False
        return None

    def _end(self, place: _Place, finish: str) -> Generated:
        assert place.task is not None
        features = place.features
        n = len(place.tokens)
        if features is not None:
            features = Features(features.rows[:n], features.top_ids[:n], features.top_log_p[:n])
        done = Generated(
            place.task.number, place.tokens, place.n_prompt, place.n_user,
            place.task.temperature, finish, features,
        )  # fmt: skip
        place.task = place.features = None
        return done


def join_rows(layers: list[npt.NDArray[np.float32]]) -> npt.NDArray[np.float16]:
    """Layer inputs side by side in float16, within its range: [n, n_layers * n_embd]."""
    rows = np.concatenate(layers, axis=1)
    most = np.float32(np.finfo(np.float16).max)
    return np.clip(rows, -most, most).astype(np.float16)
