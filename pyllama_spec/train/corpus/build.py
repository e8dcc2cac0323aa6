"""Builds the training text: the target's own answers, in the order of their task numbers.

Sequences end in any order; they are judged and stored in the order of their numbers, so that
interruptions do not change the text: one that waits for an earlier one is generated again.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import numpy as np

from pyllama_spec.engine import Model, engine_version
from pyllama_spec.train.config import CorpusConfig
from pyllama_spec.train.corpus.features import FeatureStore
from pyllama_spec.train.corpus.generate import Generated, Generator, TargetFeatures
from pyllama_spec.train.corpus.quality import Seen, is_repetitive
from pyllama_spec.train.corpus.store import (
    Corpus,
    CorpusStore,
    TextSequence,
    hash_tokens,
    load_corpus,
)
from pyllama_spec.train.corpus.tasks import hash_prompt_seeds, make_source
from pyllama_spec.train.errors import TrainError
from pyllama_spec.train.files import hash_file
from pyllama_spec.train.progress import interruptions

# Tokens of a shard: the most that a kill can lose.
_SHARD_TOKENS = 16_384
# Below so many kept sequences of so many in a row the run gives up.
_N_JUDGED, _LEAST_KEPT = 256, 8

OnProgress = Callable[[float, str], None]
"""Gets the progress of the text, 0.0 .. 1.0, with its figures."""


def corpus_identity(config: CorpusConfig, target_sha256: str) -> dict[str, Any]:
    """The identity of a corpus's text."""
    prompts = None if config.prompts is None else hash_file(config.prompts)
    return {
        **config.identity(),
        "target_sha256": target_sha256,
        "prompts_sha256": prompts or hash_prompt_seeds(),
        "engine": engine_version(),
    }


class _Keeper:
    """Filters finished sequences in order, and stores the accepted ones."""

    def __init__(
        self, store: CorpusStore, features: FeatureStore | None, config: CorpusConfig
    ) -> None:
        self._store, self._features, self._config = store, features, config
        # Finished, and waiting for an earlier one.
        self._waiting: dict[int, Generated] = {}
        self._kept: list[tuple[TextSequence, TargetFeatures | None]] = []
        self._seen = Seen()
        self._dropped: Counter[str] = Counter(store.dropped)
        self._last: deque[bool] = deque(maxlen=_N_JUDGED)  # of each sequence, whether it was kept
        self.next_number = store.next_number
        self._n_tokens = 0
        self.n_answer = store.n_answer
        self.n_kept = 0
        for shard in range(store.n_shards):
            for sequence in store.read(shard):
                self._note(sequence)

    def progress(self, n_begun: int) -> tuple[float, str]:
        """The progress with running sequences of so many answer tokens until now.

        Running sequences count on both sides, as many are left at the end.
        """
        n_answer = self.n_answer + sum(len(d.tokens) - d.n_prompt for d in self._waiting.values())
        n_texts, n_wanted = self.n_kept + len(self._waiting), self._config.n_tokens
        note = f"{n_answer} of {n_wanted} tokens in {n_texts} texts, {self.n_dropped} dropped"
        return min((n_answer + n_begun) / (n_wanted + n_begun), 1.0), note

    @property
    def n_dropped(self) -> int:
        """The number of dropped sequences."""
        return self._dropped.total()

    @property
    def is_done(self) -> bool:
        """Whether the corpus has enough answer tokens."""
        return self.n_answer >= self._config.n_tokens

    def take(self, done: Generated) -> None:
        """Takes a sequence, and filters it once all before it were."""
        self._waiting[done.number] = done
        while not self.is_done and (ready := self._waiting.pop(self.next_number, None)) is not None:
            self.next_number += 1
            self._judge(ready)
            if self._n_tokens >= _SHARD_TOKENS:
                self.flush()

    def _judge(self, done: Generated) -> None:
        reason = self._why_not(done)
        self._last.append(reason is None)
        if reason is not None:
            self._dropped[reason] += 1
            self._check_worth()
            return
        mask = np.zeros(len(done.tokens), np.bool_)
        mask[done.n_prompt :] = True
        tokens = np.array(done.tokens, np.uint32)
        sequence = TextSequence(done.number, tokens, mask, done.temperature <= 0)
        self._kept.append((sequence, done.features))
        self._n_tokens += len(tokens)
        self.n_answer += sequence.n_answer
        self._note(sequence)

    def _check_worth(self) -> None:
        """Raises if nearly all sequences are dropped: the target's own prompts never end."""
        if self.n_kept == 0 and self.n_dropped >= _N_JUDGED:
            raise TrainError(_nothing_kept(self._dropped))
        n_kept, is_endless = sum(self._last), self._config.prompts is None
        if is_endless and len(self._last) == _N_JUDGED and n_kept < _LEAST_KEPT:
            raise TrainError(
                f"only {n_kept} of the last {_N_JUDGED} sequences are worth keeping "
                f"({_reasons(self._dropped)}). Train on what is there (--tokens {self.n_answer}), "
                "or give prompts of your own (--prompts) or another temperature"
            )

    def _why_not(self, done: Generated) -> str | None:
        if done.finish == "user":
            return "user turn"
        answer = done.tokens[done.n_prompt :]
        if len(answer) < self._config.min_answer:
            return "short"
        if is_repetitive(answer):
            return "repetitive"
        if done.n_user < done.n_prompt and self._seen.has_prompt(done.tokens[: done.n_prompt]):
            return "prompt seen"
        return "answer seen" if self._seen.has_answer_like(answer) else None

    def _note(self, sequence: TextSequence) -> None:
        tokens, n_prompt = sequence.tokens.tolist(), int(np.argmax(sequence.mask))
        self._seen.note(tokens[:n_prompt], tokens[n_prompt:])
        self.n_kept += 1

    def flush(self) -> None:
        """Stores the filtered sequences."""
        sequences = [sequence for sequence, _ in self._kept]
        features = [f for _, f in self._kept if f is not None]
        # The features first: without an entry in the corpus's index they do not count.
        is_whole = 0 < len(sequences) == len(features)
        try:
            if self._features is not None and is_whole:
                self._features.put(self._store.n_shards, hash_tokens(sequences), features)
        finally:
            # Text is small, features are not: on a disk that is full for them it is kept still.
            self._store.append(sequences, self.next_number, dict(self._dropped))
        self._kept.clear()
        self._n_tokens = 0


def _reasons(dropped: Counter[str]) -> str:
    return ", ".join(f"{reason}: {n}" for reason, n in dropped.most_common())


def _nothing_kept(dropped: Counter[str]) -> str:
    return (
        f"none of the first {dropped.total()} sequences is worth keeping ({_reasons(dropped)}); "
        "give prompts of your own (--prompts) or another temperature"
    )


def build_corpus(
    model: Model,
    config: CorpusConfig,
    store: CorpusStore,
    *,
    features: FeatureStore | None = None,
    target_layers: tuple[int, ...] = (),
    n_top: int = 0,
    n_threads: int | None = None,
    on_progress: OnProgress = lambda fraction, note: None,
) -> Corpus:
    """Generates until there are config.n_tokens answer tokens; resumes an earlier run."""
    keeper = _Keeper(store, features, config)
    if not keeper.is_done:
        generator = Generator(
            model, make_source(model, config), config,
            target_layers=target_layers if features else (), n_top=n_top, n_threads=n_threads,
        )  # fmt: skip
        try:
            _collect(generator, keeper, on_progress)
        finally:
            generator.close()
            keeper.flush()
    corpus = load_corpus(store, config.n_tokens)
    if not corpus.sequences:
        raise TrainError(_nothing_kept(Counter(store.dropped)))
    return corpus


def _collect(generator: Generator, keeper: _Keeper, on_progress: OnProgress) -> None:
    with interruptions() as interrupted:
        for done in generator.run(keeper.next_number):
            if done is not None:
                keeper.take(done)
            else:
                on_progress(*keeper.progress(generator.n_begun))
            if keeper.is_done:
                return
            if interrupted.is_set():
                raise KeyboardInterrupt
