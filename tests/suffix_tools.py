"""Helpers for tests of the suffix drafter."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from pyllama_spec.drafters import Committed, Drafter, DraftRequest, Suffix

# A sequence that no test generates on.
_ASIDE = 10_000


def fresh(seed: int, n: int = 60) -> list[int]:
    """A text without repetitions of its own, and of no other one's tokens in a row."""
    return random.Random(seed).sample(range(1000, 30000), n)


def tell(drafter: Suffix, tokens: Sequence[int], seq: int = 0, **about: Any) -> None:
    """A request with this text begins; it does not end yet."""
    drafter.begin_request(seq, **about)
    drafter.truncate(seq, 0)
    drafter.commit_one(Committed(seq, list(tokens), 0))


def teach(drafter: Suffix, texts: Iterable[Sequence[int]], **about: Any) -> None:
    for text in texts:
        tell(drafter, text, _ASIDE, **about)
        drafter.end_request(_ASIDE)


def knowing(*texts: Sequence[int], max_draft: int = 8) -> Suffix:
    drafter = Suffix(max_draft)
    teach(drafter, texts)
    return drafter


def proposal(drafter: Suffix, tokens: Sequence[int], n: int = 8, seq: int = 0) -> list[int]:
    return list(drafter.propose_one(DraftRequest(seq, list(tokens), n)).ids)


class Played(NamedTuple):
    """The rounds of a drafter on known answers, and what it drafted."""

    n_rounds: int = 0
    n_drafted: int = 0
    n_accepted: int = 0

    @property
    def tokens_per_round(self) -> float:
        """Tokens per round; 1 for plain decoding."""
        return (self.n_rounds + self.n_accepted) / max(self.n_rounds, 1)


def play(drafter: Drafter, prompt: Sequence[int], answer: Sequence[int]) -> Played:
    """Replays a known answer with a drafter, as if a target generated it."""
    drafter.begin_request(0, remember=True, user="")
    drafter.truncate(0, 0)
    text, at = [*prompt, answer[0]], 1
    drafter.commit([Committed(0, text[:], 0)])
    n_rounds = n_drafted = n_accepted = 0
    while at < len(answer):
        n = min(drafter.max_draft, len(answer) - at)
        [draft] = drafter.propose([DraftRequest(0, text, n, n_lookup=n)])
        ids, right = draft.ids[: len(answer) - at - 1], 0
        while right < len(ids) and ids[right] == answer[at + right]:
            right += 1
        new = list(answer[at : at + right + 1])
        drafter.commit([Committed(0, new, len(text))])
        text += new
        at += len(new)
        n_rounds, n_drafted, n_accepted = n_rounds + 1, n_drafted + len(ids), n_accepted + right
    drafter.end_request(0)
    return Played(n_rounds, n_drafted, n_accepted)


def play_all(drafter: Drafter, requests: Iterable[tuple[Sequence[int], Sequence[int]]]) -> Played:
    """Replays prompts with their answers, one after the other."""
    results = [Played(), *(play(drafter, prompt, answer) for prompt, answer in requests)]
    return Played(*map(sum, zip(*results, strict=True)))
