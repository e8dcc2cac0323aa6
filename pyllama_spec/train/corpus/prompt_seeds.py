"""Prompt seeds: first words of users' prompts of many kinds (prompt_seeds.txt, subjects.txt).

Without a seed a small model rarely asks for code or JSON, and seldom about subjects that people ask
about. Two in five prompt seeds name subjects in braces, as in "Plan a day in {place}".
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import numpy as np

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
