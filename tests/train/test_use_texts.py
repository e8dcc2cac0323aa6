"""From the parts of a store back to the target's texts, and to the tokens to learn."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from pyllama_spec.drafters import Committed, Suffix
from pyllama_spec.drafters.suffix.store import Store
from pyllama_spec.train.run.from_use import apart, newest_with_answers, pieces_of, threads_of

DIGEST = bytes(range(32))


class Owner:
    """A user's conversations; each turn is a request on one of two sequences."""

    def __init__(self, path: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.drafter = Suffix(8, store=Store(path, DIGEST))
        self.system = self._new(40)
        self.chats: list[list[int]] = []
        self.held: dict[int, list[int]] = {0: [], 1: []}
        self.answers: list[tuple[list[int], list[int]]] = []

    def _new(self, n: int) -> list[int]:
        return [self.rng.randrange(1000, 30000) for _ in range(n)]

    def turn(self) -> None:
        """A new conversation, the next turn of one, or another answer to an earlier turn."""
        kind = self.rng.choice(["new", "next", "next", "next", "again"])
        if kind == "new" or not self.chats:
            chat = list(self.system) if self.rng.random() < 0.7 else self._new(5)
        else:
            chat = list(self.rng.choice(self.chats[-4:]))
            if kind == "again":
                del chat[self.rng.randrange(len(chat) // 2, len(chat)) :]
        prompt = chat + self._new(self.rng.randrange(3, 50))
        answer = self._new(self.rng.randrange(3, 60))
        self._request(prompt, answer)
        self.answers.append((prompt, answer))
        self.chats.append(prompt + answer)

    def _request(self, prompt: list[int], answer: list[int]) -> None:
        seq = self.rng.randrange(2)
        before, drafter = self.held[seq], self.drafter
        drafter.begin_request(seq, remember=True, user="")
        n = next((i for i, (a, b) in enumerate(zip(before, prompt, strict=False)) if a != b),
                 min(len(before), len(prompt) - 1))  # fmt: skip
        drafter.truncate(seq, n)
        drafter.commit_one(Committed(seq, [*prompt[n:], answer[0]], n, n_chosen=1))
        at = len(prompt) + 1
        while at < len(prompt) + len(answer):
            new = answer[at - len(prompt) :][: self.rng.randrange(1, 5)]
            drafter.commit_one(Committed(seq, new, at, n_chosen=len(new)))
            at += len(new)
        drafter.end_request(seq)
        self.held[seq] = prompt + answer


@pytest.fixture(params=range(6))
def owner(request: pytest.FixtureRequest, tmp_path: Path) -> Owner:
    one = Owner(tmp_path / "store.memory", request.param)
    for _ in range(40):
        one.turn()
    return one


def test_every_answer_is_learned_once_behind_what_it_was_said_behind(
    owner: Owner, tmp_path: Path
) -> None:
    texts = Store(tmp_path / "store.memory", None, is_read_only=True).texts()
    assert len(texts) > 30
    threads = threads_of(texts, newest_with_answers(texts, 1 << 30))
    learned: set[tuple[int, ...]] = set()
    for thread in threads:
        assert len(thread.ids) == len(thread.origins)
        for i, origin in enumerate(thread.origins):
            if origin:
                key = tuple(thread.ids[: i + 1])
                assert key not in learned
                learned.add(key)
    assert learned == {
        tuple(prompt + answer[: i + 1])
        for prompt, answer in owner.answers for i in range(len(answer))
    }  # fmt: skip


@pytest.mark.parametrize(("n_piece", "n_window"), [(2048, 64), (128, 64), (100, 100), (700, 300)])
def test_windows_have_every_answer_once(
    owner: Owner, tmp_path: Path, n_piece: int, n_window: int
) -> None:
    texts = Store(tmp_path / "store.memory", None, is_read_only=True).texts()
    threads = threads_of(texts, newest_with_answers(texts, 1 << 30))
    pieces = pieces_of(threads, n_piece, n_window)
    n_learned = 0
    for piece in pieces:
        whole = piece.sequence
        assert len(whole.tokens) <= n_piece
        masks = np.zeros(len(whole.tokens), int)
        for begin, window in piece.windows:
            n = len(window.tokens)
            assert n <= n_window
            assert (whole.tokens[begin : begin + n] == window.tokens).all()
            masks[begin : begin + n] += window.mask
            assert not window.mask[:2].any()
            assert window.mask.any()
        # What a window learns, what it was computed with has the target's distribution for.
        assert (masks == whole.mask).all()
        n_learned += int(masks.sum())
    n_all = sum(len(answer) for _, answer in owner.answers)
    # But for what stands at the very beginning of a part.
    assert n_all - n_learned <= 2 * sum(len(piece.windows) for piece in pieces)
    if n_piece == 2048:
        assert n_learned == n_all


def test_the_newest_are_taken(owner: Owner, tmp_path: Path) -> None:
    texts = Store(tmp_path / "store.memory", None, is_read_only=True).texts()
    for n in (1, 50, 300):
        chosen = newest_with_answers(texts, n)
        counts = [int(np.count_nonzero(texts[i].origins)) for i in sorted(chosen)]
        assert sum(counts) >= n > sum(counts[1:])
        assert all(i in chosen or not texts[i].origins.any()
                   for i in range(min(chosen), len(texts)))  # fmt: skip
        threads = threads_of(texts, chosen)
        assert sum(sum(map(bool, one.origins)) for one in threads) == sum(counts)


def test_what_is_held_out_stays_so(owner: Owner, tmp_path: Path) -> None:
    """A draft that is fitted repeatedly is never judged by text that it learned from."""

    def keys() -> list[float]:
        texts = Store(tmp_path / "store.memory", None, is_read_only=True).texts()
        return [one.key for one in threads_of(texts, newest_with_answers(texts, 1 << 30))]

    first = keys()
    held = set().union(*apart(first, 0.4))
    for _ in range(20):
        owner.turn()
    second = keys()
    assert set(first) <= set(second)
    if len([key for key in first if key < 0.2]) and len([key for key in first if key < 0.4]) > 1:
        assert held <= set().union(*apart(second, 0.4))
    for share in (0.01, 0.2, 0.9):
        for some in (first[:3], first, second):
            choosing, judging = apart(some, share)
            assert choosing and judging and not choosing & judging
            assert set(some) - choosing - judging
    assert all(0 <= key < 1 for key in second)
