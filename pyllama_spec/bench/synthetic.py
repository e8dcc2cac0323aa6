"""Acceptance by coin flips, to study speed apart from a draft's quality.

The verdict stays the target's own. What is made up is the draft: an oracle that knows how plain
decoding went on takes the proposal of the real drafter and puts right or wrong tokens in its place,
as seeded coins fall. So drafting costs what the real drafter costs, verifying what that many rows
cost, the text is the target's, and only the rate of acceptance is chosen.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from pyllama_spec.drafters import AttachedDrafter, Draft, Drafter, Features
from pyllama_spec.engine import Context


class SyntheticDrafter:
    """Proposes len(probabilities) tokens, the i-th right with probabilities[i] if it is reached.

    It asks the real drafter for as many each time and ignores what they are. Before each text it
    has to be told how the text will go: follow(). Where the text leaves that answer, which on one
    machine only rounding can cause, the proposals are the real drafter's, and are counted.

    Args:
        inner: the real drafter; it learns the same of the text as without this one.
        probabilities: of acceptance by depth, each given that the depth is reached.
        n_vocab: ids of wrong tokens are below it.
        seed: of the coins.

    """

    def __init__(
        self, inner: Drafter, probabilities: Sequence[float], n_vocab: int, seed: int
    ) -> None:
        self.inner = inner
        self.name = f"synthetic({inner.name})"
        self.target_layers = tuple(inner.target_layers)
        self.max_draft = len(probabilities)
        self.n_off_script = 0
        self._probabilities = tuple(probabilities)
        self._n_vocab = n_vocab
        self._seed = seed
        self._random = random.Random(seed)
        self._answer: tuple[int, ...] = ()
        self._n_committed = 0
        self._is_on_script = False

    def follow(self, answer: Sequence[int], key: str) -> None:
        """Says how the next text goes.

        Args:
            answer: all its tokens, an end token included.
            key: names the run; another one gives other coins.

        """
        self._answer = tuple(answer)
        self._random = random.Random(f"{self._seed}/{key}")
        self._n_committed, self._is_on_script = 0, True

    def attach(self, target: Context) -> None:
        """Passed on to a drafter that has a model of its own."""
        if isinstance(self.inner, AttachedDrafter):
            self.inner.attach(target)

    def begin(self, seq: int, tokens: Sequence[int], features: Features) -> None:
        """Passed on."""
        self.inner.begin(seq, tokens, features)

    def propose(self, seq: int, pending: int, n: int) -> Draft:
        """The real drafter's proposal with its tokens exchanged."""
        n = min(n, self.max_draft)
        real = list(self.inner.propose(seq, pending, n).ids)
        if not self._is_on_script:
            self.n_off_script += 1
            return Draft(real)
        coming = self._answer[self._n_committed : self._n_committed + n]
        ids: list[int] = []
        is_right = True
        for i, token in enumerate(coming):
            # Behind the first wrong token nothing is reached, so nothing matters.
            is_right = is_right and self._random.random() < self._probabilities[i]
            ids.append(token if is_right else (token + 1) % self._n_vocab)
        # Behind the answer's end token: rows that a real draft has there too.
        ids += [pending] * (n - len(ids))
        return Draft(ids)

    def commit(self, seq: int, tokens: Sequence[int], features: Features) -> None:
        """Compares the text with the answer, and passes the tokens on."""
        at = self._n_committed
        self._n_committed += len(tokens)
        if tuple(tokens) != self._answer[at : self._n_committed]:
            self._is_on_script = False
        self.inner.commit(seq, tokens, features)

    def truncate(self, seq: int, n_keep: int) -> None:
        """Passed on."""
        self.inner.truncate(seq, n_keep)

    def copy(self, seq: int, to: int) -> None:
        """Passed on."""
        self.inner.copy(seq, to)

    def close(self) -> None:
        """Passed on."""
        self.inner.close()
