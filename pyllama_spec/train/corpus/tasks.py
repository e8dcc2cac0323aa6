"""Numbered tasks, each with its own seed, so that their order has no effect.

The prompt seeds are the first words of users' prompts of many kinds (prompt_seeds.txt,
subjects.txt). Without a seed a small model rarely asks for code or JSON, and seldom about subjects
that people ask about. Two in five name subjects in braces, as in "Plan a day in {place}".
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from pyllama_spec.chat.prompt_file import Prompt, read_prompt_file
from pyllama_spec.chat.prompts import check_fits
from pyllama_spec.chat.template import ChatTemplate
from pyllama_spec.engine import Model, Vocab
from pyllama_spec.errors import ArgumentError, ContextFullError, UnsupportedError
from pyllama_spec.train.config import CorpusConfig
from pyllama_spec.train.errors import TrainError

_SEEDS = Path(__file__).with_name("prompt_seeds.txt")
_SUBJECTS = Path(__file__).with_name("subjects.txt")
_SLOT = re.compile(r"\{(\w+)\}")


def read_prompt_seeds() -> list[str]:
    """Reads the seeds, one per line; {kind} stands for a subject of that kind."""
    return _SEEDS.read_text(encoding="utf-8").split("\n")[:-1]


def read_subjects() -> dict[str, list[str]]:
    """Reads the subjects by kind."""
    subjects: dict[str, list[str]] = {}
    for line in _SUBJECTS.read_text(encoding="utf-8").split("\n")[:-1]:
        kind, _, subject = line.partition(": ")
        subjects.setdefault(kind, []).append(subject)
    return subjects


def hash_prompt_seeds() -> str:
    """The sha256 of all prompt seeds and subjects."""
    return hashlib.sha256(_SEEDS.read_bytes() + _SUBJECTS.read_bytes()).hexdigest()


def is_whole(prompt_seed: str) -> bool:
    """Whether the seed is a complete prompt."""
    return prompt_seed.endswith((".", "?", "!"))


class PromptSeeds:
    """Draws prompt seeds with equal probability."""

    def __init__(self) -> None:
        self._lines, self._subjects = read_prompt_seeds(), read_subjects()

    def draw(self, rng: np.random.Generator) -> str:
        """Draws a seed, and fills in its subjects."""
        line = self._lines[int(rng.integers(len(self._lines)))]

        def subject(slot: re.Match[str]) -> str:
            of_kind = self._subjects[slot[1]]
            return of_kind[int(rng.integers(len(of_kind)))]

        return _SLOT.sub(subject, line)


# The share of complete prompt seeds that get no further words.
_WHOLE_SHARE = 0.5


@dataclass(slots=True)
class Task:
    """A sequence to generate."""

    number: int  # its place in the corpus
    prompt: list[int]  # the first ids
    temperature: float  # the temperature of the answer
    rng: np.random.Generator  # its own random numbers
    writes_user: bool  # whether the target writes the user turn first
    # the most tokens of the user turn; None for the configuration's number
    max_user: int | None = None


class TaskSource(Protocol):
    """The source of tasks by number.

    Attributes:
        shared: the common prefix of all prompts; shorter than every prompt.
        after_user: ids between the target's user turn and the answer.
    """

    shared: list[int]
    after_user: list[int]

    def task(self, number: int) -> Task | None:
        """The task of a number; None when there are no more."""


def _new_task(config: CorpusConfig, number: int, prompt: list[int], *, writes_user: bool) -> Task:
    rng = np.random.default_rng([config.seed, number])
    is_greedy = rng.random() < config.greedy_share
    temperature = 0.0 if is_greedy else config.temperature
    return Task(number, prompt, temperature, rng, writes_user)


class OwnPrompts:
    """Tasks in which the target writes the user turn, up to which its template is rendered.

    A share of the turns begins with one of our prompt seeds, so that all kinds of tasks occur. A
    seed that is a whole request is used unchanged every second time.
    """

    def __init__(self, model: Model, config: CorpusConfig) -> None:
        self._config = config
        chat = ChatTemplate.of_model(model).render([{"role": "user", "content": "Hello"}])
        if len(chat.spans) != 1:
            raise UnsupportedError(
                f"the chat template of {model.path.name} does not show where the user's text is, "
                "so the target cannot write it; give your own prompts (--prompts)"
            )
        start, end = chat.spans[0]
        before, after = chat.text[:start], chat.text[end:]
        vocab = model.vocab
        self._before = vocab.tokenize(before, add_special=False, parse_special=True)
        if vocab.adds_bos and vocab.bos is not None and self._before[:1] != [vocab.bos]:
            self._before.insert(0, vocab.bos)
        self.after_user = vocab.tokenize(after, add_special=False, parse_special=True)
        if not self._before or not self.after_user:
            raise UnsupportedError(
                f"the chat template of {model.path.name} puts nothing around the user's text, so "
                "its end is unknown; give your own prompts (--prompts)"
            )
        self.shared = self._before[:-1]
        self._vocab, self._prompt_seeds = vocab, PromptSeeds()

    def task(self, number: int) -> Task | None:
        """The task of a number; there is always one."""
        task = _new_task(self._config, number, list(self._before), writes_user=True)
        if task.rng.random() >= self._config.prompt_seed_share:
            return task
        prompt_seed = self._prompt_seeds.draw(task.rng)
        opening = self._vocab.tokenize(prompt_seed, add_special=False, parse_special=False)
        config = self._config
        n = len(task.prompt) + len(opening) + config.min_user + len(self.after_user)
        if n + config.min_answer > config.n_ctx:  # no room for an answer
            return task
        task.prompt += opening
        if is_whole(prompt_seed) and task.rng.random() < _WHOLE_SHARE:
            task.prompt += self.after_user
            task.writes_user = False
        return task


class Documents:
    """Tasks for a model without a chat template: documents without turns.

    The first tokens are drawn at the temperature of user turns, so that no two documents begin
    alike; what follows is learned from, most of it written at temperature 0.
    """

    # Tokens that a document begins with.
    _MIN_BEGUN, _MAX_BEGUN = 4, 24

    def __init__(self, model: Model, config: CorpusConfig) -> None:
        self._config, vocab = config, model.vocab
        first = next((t for t in (vocab.bos, vocab.eos) if t is not None), None)
        if first is None:
            raise UnsupportedError(
                f"{model.path.name} has neither a chat template nor a token that begins a text: "
                "give your own prompts (--prompts)"
            )
        self._first = first
        self.shared: list[int] = []
        self.after_user: list[int] = []

    def task(self, number: int) -> Task | None:
        """The task of a number; there is always one."""
        task = _new_task(self._config, number, [self._first], writes_user=True)
        task.max_user = int(task.rng.integers(self._MIN_BEGUN, self._MAX_BEGUN + 1))
        return task


class FilePrompts:
    """Tasks from a file's prompts, shuffled by seed, in up to max_passes passes."""

    def __init__(self, model: Model, config: CorpusConfig, path: Path) -> None:
        self._config = config
        self.after_user: list[int] = []
        template = ChatTemplate.of_model(model)
        max_prompt = config.n_ctx - config.min_answer
        given = [_tokens(one, template, model.vocab, config.n_ctx) for one in read_prompts(path)]
        self.n_too_long = sum(one is None or len(one) > max_prompt for one in given)
        prompts = [one for one in given if one and len(one) <= max_prompt]
        if not prompts:
            raise TrainError(
                f"every prompt of {path} is longer than {max_prompt} tokens, which "
                f"n_ctx={config.n_ctx} leaves for it beside an answer of at least "
                f"{config.min_answer}; give a larger n_ctx"
            )
        order = np.random.default_rng(config.seed).permutation(len(prompts))
        self._prompts = [prompts[i] for i in order]
        shortest = min(len(prompt) for prompt in prompts)
        self.shared = _common(prompts)[: shortest - 1]

    def task(self, number: int) -> Task | None:
        """The prompt of a number; the first pass has each prompt once."""
        passes, i = divmod(number, len(self._prompts))
        if passes >= self._config.max_passes:
            return None
        task = _new_task(self._config, number, list(self._prompts[i]), writes_user=False)
        if passes:  # a second greedy answer would be the first one again
            task.temperature = self._config.temperature
        return task


def _common(prompts: Sequence[list[int]]) -> list[int]:
    """The common beginning of all prompts."""
    first, last = min(prompts), max(prompts)
    n = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    return first[:n]


def _tokens(prompt: Prompt, template: ChatTemplate, vocab: Vocab, n_ctx: int) -> list[int] | None:
    """The ids of a prompt; None where its bytes alone say that it does not fit."""
    chat = template.render(prompt.messages) if prompt.messages else None
    try:
        check_fits(vocab, prompt.text if chat is None else chat.text, n_ctx)
    except ContextFullError:
        return None
    return vocab.tokenize(prompt.text, parse_special=True) if chat is None else chat.tokenize(vocab)


def read_prompts(path: Path) -> tuple[Prompt, ...]:
    """Reads a file's prompts, which need no names."""
    try:
        return read_prompt_file(path, are_named=False)
    except ArgumentError as error:
        raise TrainError(
            f"{error}. Without the file the target writes prompts of its own"
        ) from None


def make_source(model: Model, config: CorpusConfig) -> TaskSource:
    """The source of tasks: a file's prompts, else the target's own, or a base model's documents."""
    if config.prompts is not None:
        return FilePrompts(model, config, config.prompts)
    if has_template(model):
        return OwnPrompts(model, config)
    return Documents(model, config)


def has_template(model: Model) -> bool:
    """Whether the model's file has a chat template."""
    return not ChatTemplate.of_model(model).note
