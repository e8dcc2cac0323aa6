"""Synthetic acceptance: random verdicts, to study speed apart from a draft's quality.

Only the draft is synthetic. An oracle that knows the text of plain decoding replaces the tokens of
the real drafter's proposal by right or wrong ones, by seeded coin flips. So drafting costs what the
real drafter costs, verifying costs what that many rows cost, the text is the target's, and only the
rate of acceptance is chosen.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from pyllama_spec.drafters import Committed, Draft, Drafter, DraftRequest
from pyllama_spec.engine import Context, Model


class SyntheticDrafter(Drafter):
    """Proposes len(probabilities) tokens, the i-th right with probabilities[i] if it is reached.

    It asks the real drafter for as many tokens each time and ignores their ids. follow() must
    announce each text. If the text departs from that answer, which on one machine only rounding can
    cause, the proposals are the real drafter's, and are counted.
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
        self._n_prompt = 0
        self._answer: tuple[int, ...] = ()
        self._n_committed = 0
        self._is_on_script = False

    def follow(self, n_prompt: int, answer: Sequence[int], key: str) -> None:
        """Sets the token ids that the next text will have."""
        self._n_prompt = n_prompt
        self._answer = tuple(answer)
        self._random = random.Random(f"{self._seed}/{key}")
        self._n_committed, self._is_on_script = 0, True

    def check(self, target: Model) -> None:
        """Checks the real drafter."""
        self.inner.check(target)

    def attach(self, target: Context) -> None:
        """Attaches the real drafter."""
        self.inner.attach(target)

    def propose_one(self, request: DraftRequest) -> Draft:
        """Replaces the tokens of the real drafter's proposal."""
        n = min(request.n_requested, self.max_draft)
        real = self.inner.propose([request._replace(n_requested=n)])[0]
        if not self._is_on_script:
            self.n_off_script += 1
            return real
        coming = self._answer[self._n_committed : self._n_committed + n]
        ids: list[int] = []
        is_right = True
        for i, token in enumerate(coming):
            # After the first wrong token nothing is reached, so nothing matters.
            is_right = is_right and self._random.random() < self._probabilities[i]
            ids.append(token if is_right else (token + 1) % self._n_vocab)
        # After the answer's end token: rows that a real draft has there too.
        ids += [request.tokens[-1]] * (n - len(ids))
        return Draft(ids)

    def commit(self, done: Sequence[Committed]) -> None:
        """Compares the committed tokens with the answer, and passes them on."""
        for one in done:
            # The last token of a prompt's last part is the first of the answer.
            generated = one.tokens[max(self._n_prompt - one.start, 0) :]
            at = self._n_committed
            self._n_committed += len(generated)
            if tuple(generated) != self._answer[at : self._n_committed]:
                self._is_on_script = False
        self.inner.commit(done)

    def truncate(self, seq: int, n_keep: int) -> None:
        """Truncates the real drafter."""
        self.inner.truncate(seq, n_keep)

    def copy(self, seq: int, to: int) -> None:
        """Copies the sequence in the real drafter."""
        self.inner.copy(seq, to)

    def close(self) -> None:
        """Closes the real drafter."""
        self.inner.close()
