"""Numbered tasks, each with its own seed, so that their order has no effect.

The prompt seeds are the first words of users' prompts of many kinds (prompt_seeds.txt,
subjects.txt). Without a seed a small model rarely asks for code or JSON, and seldom about subjects
that people ask about. Two in five name subjects in braces, as in "Plan a day in {place}".
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from pyllama_spec.chat.prompt_file import Prompt, read_prompt_file
from pyllama_spec.chat.template import ChatTemplate
from pyllama_spec.engine import Model
from pyllama_spec.errors import ArgumentError, UnsupportedError
from pyllama_spec.speculative.sequence import n_common
from pyllama_spec.train.config import CorpusConfig
from pyllama_spec.train.errors import TrainError

_SEEDS = Path(__file__).with_name("prompt_seeds.txt")
_SUBJECTS = Path(__file__).with_name("subjects.txt")
_SLOT = re.compile(r"\{(\w+)\}")


@cache
def read_prompt_seeds() -> list[str]:
    """The seeds, one per line; {kind} stands for a subject of that kind."""
    return _SEEDS.read_text(encoding="utf-8").split("\n")[:-1]


@cache
def read_subjects() -> dict[str, list[str]]:
    """The subjects by kind."""
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


def draw_prompt_seed(rng: np.random.Generator) -> str:
    """Draws a seed, all with equal probability, and fills in its subjects."""
    lines, subjects = read_prompt_seeds(), read_subjects()

    def subject(slot: re.Match[str]) -> str:
        of_kind = subjects[slot[1]]
        return of_kind[int(rng.integers(len(of_kind)))]

    return _SLOT.sub(subject, lines[int(rng.integers(len(lines)))])


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


@dataclass(frozen=True, slots=True)
class TaskSource:
    """The source of tasks by number."""

    task: Callable[[int], Task | None]  # the task of a number; None when there are no more
    shared: list[int]  # the common prefix of all prompts; shorter than every prompt
    after_user: list[int]  # ids between the target's user turn and the answer


def _new_task(config: CorpusConfig, number: int, prompt: list[int], *, writes_user: bool) -> Task:
    rng = np.random.default_rng([config.seed, number])
    is_greedy = rng.random() < config.greedy_share
    temperature = 0.0 if is_greedy else config.temperature
    return Task(number, list(prompt), temperature, rng, writes_user)


def own_prompts(model: Model, config: CorpusConfig) -> TaskSource:
    """Tasks in which the target writes the user turn, up to which its template is rendered.

    A share of the turns begins with one of our prompt seeds, so that all kinds of tasks occur. A
    seed that is a whole request is used unchanged every second time.
    """
    chat = ChatTemplate.of_model(model).render([{"role": "user", "content": "Hello"}])
    if len(chat.spans) != 1:
        raise UnsupportedError(
            f"the chat template of {model.path.name} does not show where the user's text is, "
            "so the target cannot write it; give your own prompts (--prompts)"
        )
    vocab, (start, end) = model.vocab, chat.spans[0]
    before = vocab.tokenize(chat.text[:start], add_special=False, parse_special=True)
    if vocab.adds_bos and vocab.bos is not None and before[:1] != [vocab.bos]:
        before.insert(0, vocab.bos)
    after_user = vocab.tokenize(chat.text[end:], add_special=False, parse_special=True)
    if not before or not after_user:
        raise UnsupportedError(
            f"the chat template of {model.path.name} puts nothing around the user's text, so "
            "its end is unknown; give your own prompts (--prompts)"
        )

    def make(number: int) -> Task:
        task = _new_task(config, number, before, writes_user=True)
        if task.rng.random() >= config.prompt_seed_share:
            return task
        prompt_seed = draw_prompt_seed(task.rng)
        opening = vocab.tokenize(prompt_seed, add_special=False, parse_special=False)
        n = len(before) + len(opening) + config.min_user + len(after_user)
        if n + config.min_answer > config.n_ctx:  # no room for an answer
            return task
        task.prompt += opening
        if is_whole(prompt_seed) and task.rng.random() < _WHOLE_SHARE:
            task.prompt += after_user
            task.writes_user = False
        return task

    return TaskSource(make, before[:-1], after_user)


def file_prompts(model: Model, config: CorpusConfig, path: Path) -> TaskSource:
    """Tasks from a file's prompts, shuffled by seed, in up to max_passes passes."""
    template, vocab = ChatTemplate.of_model(model), model.vocab
    max_prompt = config.n_ctx - config.min_answer
    given = [
        template.render(one.messages).tokenize(vocab)
        if one.messages
        else vocab.tokenize(one.text, parse_special=True)
        for one in read_prompts(path)
    ]
    prompts = [one for one in given if one and len(one) <= max_prompt]
    if not prompts:
        raise TrainError(
            f"every prompt of {path} is longer than {max_prompt} tokens, which "
            f"n_ctx={config.n_ctx} leaves for it beside an answer of at least "
            f"{config.min_answer}; give a larger n_ctx"
        )
    order = np.random.default_rng(config.seed).permutation(len(prompts))

    def make(number: int) -> Task | None:
        passes, i = divmod(number, len(prompts))
        if passes >= config.max_passes:
            return None
        task = _new_task(config, number, prompts[order[i]], writes_user=False)
        if passes:  # a second greedy answer would be the first one again
            task.temperature = config.temperature
        return task

    n_shared = min(n_common(min(prompts), max(prompts)), min(map(len, prompts)) - 1)
    return TaskSource(make, prompts[0][:n_shared], [])


def read_prompts(path: Path) -> tuple[Prompt, ...]:
    """Reads a file's prompts, which need no names."""
    try:
        return read_prompt_file(path, are_named=False)
    except ArgumentError as error:
        raise TrainError(
            f"{error}. Without the file the target writes prompts of its own"
        ) from None


def make_source(model: Model, config: CorpusConfig) -> TaskSource:
    """The source of tasks: a file's prompts, else the target's own."""
    if config.prompts is not None:
        return file_prompts(model, config, config.prompts)
    if not has_template(model):
        raise UnsupportedError(
            f"{model.path.name} has no chat template, so the target cannot write prompts: give "
            "your own (--prompts)"
        )
    return own_prompts(model, config)


def has_template(model: Model) -> bool:
    """Whether the model's file has a chat template."""
    return not ChatTemplate.of_model(model).note
