"""Drafters that follow a script, for tests of the loop.

All of them keep the history that a drafter is promised (`Drafter` in drafters/base.py) and assert
the promises: a test that compares `history` with the sequence's tokens detects a lost, repeated or
misplaced notice even if the text stays right.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from pyllama_spec.drafters import Committed, Draft, Drafter, DraftRequest, Features

Rows = npt.NDArray[np.float32]


class ScriptedDrafter(Drafter):
    """Knows the whole text that will come, and what it has been told of it so far."""

    name = "scripted"

    def __init__(self, reference: Sequence[int], max_draft: int = 8) -> None:
        self.reference = list(reference)
        self.max_draft = max_draft
        self.histories: dict[int, list[int]] = {}
        self.n_proposals = 0

    def history(self, seq: int = 0) -> list[int]:
        """The tokens of a sequence, as the loop told them."""
        return self.histories.setdefault(seq, [])

    def coming(self, seq: int, n: int) -> list[int]:
        """The next n tokens of plain decoding, fewer at the reference's end."""
        at = len(self.history(seq))
        return self.reference[at : at + n]

    def propose_one(self, request: DraftRequest) -> Draft:
        seq = request.seq
        assert request.n_requested >= 1, "a drafter is not asked for nothing"
        assert self.history(seq) == list(request.tokens), "every token must have been told"
        self.n_proposals += 1
        return Draft(self.script(seq, min(request.n_requested, self.max_draft)))

    def script(self, seq: int, n: int) -> Sequence[int]:
        """At most n ids; what a kind of drafter differs in."""
        raise NotImplementedError

    def commit_one(self, done: Committed) -> None:
        assert done.start == len(self.history(done.seq)), "tokens come in order, without a gap"
        self.history(done.seq).extend(done.tokens)

    def truncate(self, seq: int, n_keep: int) -> None:
        del self.history(seq)[n_keep:]

    def copy(self, seq: int, to: int) -> None:
        self.histories[to] = list(self.history(seq))


class Perfect(ScriptedDrafter):
    """Always right."""

    name = "perfect"

    def script(self, seq: int, n: int) -> Sequence[int]:
        return self.coming(seq, n)


def other(token: int) -> int:
    """A token that differs, and is an ordinary one of every test vocabulary."""
    return 97 if token != 97 else 98


class Wrong(ScriptedDrafter):
    """Always wrong, from the first token on."""

    name = "wrong"

    def script(self, seq: int, n: int) -> Sequence[int]:
        return [other(token) for token in self.coming(seq, n)]


class Pattern(ScriptedDrafter):
    """Right for exactly k tokens in a round, k cycling through a list, and wrong after them."""

    name = "pattern"

    def __init__(
        self, reference: Sequence[int], accepts: Sequence[int], max_draft: int = 8
    ) -> None:
        super().__init__(reference, max_draft)
        self.accepts = tuple(accepts)
        self._round = 0

    def script(self, seq: int, n: int) -> Sequence[int]:
        """The first k true, then wrong ones up to n."""
        k = self.accepts[self._round % len(self.accepts)]
        self._round += 1
        coming = self.coming(seq, n)
        return coming[:k] + [other(token) for token in coming[k:]]


class Intermittent(ScriptedDrafter):
    """Another drafter's proposals in some rounds, none in the others."""

    name = "intermittent"

    def __init__(
        self, inner: ScriptedDrafter, on: Sequence[bool] = (True, False, True, False)
    ) -> None:
        super().__init__(inner.reference, inner.max_draft)
        self.inner = inner
        self.histories = inner.histories
        self.on = tuple(on)
        self._round = 0

    def script(self, seq: int, n: int) -> Sequence[int]:
        is_on = self.on[self._round % len(self.on)]
        self._round += 1
        return self.inner.script(seq, n) if is_on else ()


class Hostile(ScriptedDrafter):
    """Proposes what no drafter should, and fails now and then."""

    name = "hostile"

    def __init__(
        self,
        reference: Sequence[int],
        n_vocab: int,
        eos: int,
        max_draft: int = 8,
        p_raise: float = 0.0,
        seed: int = 0,
    ) -> None:
        super().__init__(reference, max_draft)
        self.n_vocab, self.eos, self.p_raise = n_vocab, eos, p_raise
        self._random = random.Random(seed)

    def script(self, seq: int, n: int) -> Sequence[int]:
        if self._random.random() < self.p_raise:
            raise RuntimeError("a hostile drafter fails")
        good = self.coming(seq, n)
        cut = self._random.randrange(len(good) + 1)
        bad: list[list[int]] = [
            [*good[:cut], self.eos, *good[cut:]],
            [*good[:cut], -1, *good[cut:]],
            [*good[:cut], self.n_vocab, *good[cut:]],
            [*good[:cut], 2**31, -(2**40)],
            good + [other(good[-1]) if good else 97] * 5000,
            [97] * n,
            self.coming(seq, 10_000),
            [],
        ]
        return self._random.choice(bad)


class Interrupting(ScriptedDrafter):
    """Perfect, until it raises at the n-th call of one of its methods."""

    name = "interrupting"

    def __init__(
        self,
        reference: Sequence[int],
        where: str,
        at: int,
        error: Callable[[], BaseException] = KeyboardInterrupt,
    ) -> None:
        super().__init__(reference)
        self.where, self.error = where, error
        self.n_calls_left = at

    def _called(self, where: str) -> None:
        if where == self.where:
            self.n_calls_left -= 1
            if self.n_calls_left == 0:
                raise self.error()

    def commit_one(self, done: Committed) -> None:
        super().commit_one(done)
        self._called("read" if done.first_row == done.start else "commit")

    def script(self, seq: int, n: int) -> Sequence[int]:
        self._called("propose")
        return self.coming(seq, n)


class FeatureSpy(Drafter):
    """Another drafter that also asks for layer inputs, and keeps every row with its position."""

    name = "feature-spy"

    def __init__(self, inner: Drafter, layers: Sequence[int]) -> None:
        self.inner = inner
        self.target_layers = tuple(layers)
        self.max_draft = inner.max_draft
        # seq -> position -> its row of each layer. shape: [n_layers, n_embd]
        self.rows: dict[int, dict[int, Rows]] = {}
        self._n_tokens: dict[int, int] = {}

    def _take(self, seq: int, first: int, features: Features) -> None:
        assert len(features) == len(self.target_layers)
        assert len({layer.shape[0] for layer in features}) == 1, "as many rows of each layer"
        for i in range(len(features[0])):
            row = np.stack([layer[i] for layer in features])
            self.rows.setdefault(seq, {})[first + i] = row.copy()

    def commit(self, done: Sequence[Committed]) -> None:
        """Every position is told once, with its row as soon as the target has decoded it."""
        for one in done:
            assert one.start == self._n_tokens.get(one.seq, 0)
            if one.features:
                assert one.first_row == len(self.rows.get(one.seq, {})), "rows join on"
                self._take(one.seq, one.first_row, one.features)
            self._n_tokens[one.seq] = one.start + len(one.tokens)
            n_rows = len(self.rows.get(one.seq, {}))
            assert n_rows in (self._n_tokens[one.seq], self._n_tokens[one.seq] - 1)
        self.inner.commit(done)

    def propose(self, requests: Sequence[DraftRequest]) -> Sequence[Draft]:
        return self.inner.propose(requests)

    def truncate(self, seq: int, n_keep: int) -> None:
        self._n_tokens[seq] = min(self._n_tokens.get(seq, 0), n_keep)
        rows = self.rows.setdefault(seq, {})
        for position in [p for p in rows if p >= n_keep]:
            del rows[position]
        self.inner.truncate(seq, n_keep)

    def copy(self, seq: int, to: int) -> None:
        self.rows[to] = dict(self.rows.get(seq, {}))
        self._n_tokens[to] = self._n_tokens.get(seq, 0)
        self.inner.copy(seq, to)

    def close(self) -> None:
        self.inner.close()


def told(tokens: Sequence[int], start: int = 0, seq: int = 0) -> list[Committed]:
    return [Committed(seq, tokens, start)]


def proposed(drafter: Drafter, tokens: Sequence[int], n: int, seq: int = 0) -> list[int]:
    return list(drafter.propose([DraftRequest(seq, list(tokens), n)])[0].ids)
