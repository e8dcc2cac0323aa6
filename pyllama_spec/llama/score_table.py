"""The rows of logits that Llama.eval() read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pyllama_spec.llama.open_model import Logits
from pyllama_spec.speculative.sequence import Adapters, n_common


class ScoreTable:
    """Rows of logits, each of a token of one text: a row of another text is never left."""

    def __init__(self) -> None:
        self._rows: Logits = np.zeros((0, 0), dtype=np.float32)
        self._tokens: list[int] = []
        self._adapters: Adapters = None
        self._filled: set[int] = set()
        # The row that came last, which the table may be too short for, and its place.
        self._newest: tuple[int, Logits] | None = None

    def table(self, n_rows: int, n_vocab: int) -> Logits:
        """[n_rows, n_vocab]: the rows, zeros where there is none; always the same array."""
        if not self._rows.size:
            self._rows = np.zeros((n_rows, n_vocab), dtype=np.float32)
        return self._rows

    def keep(self, tokens: Sequence[int], adapters: Adapters) -> None:
        """Drops the rows that are not of these tokens, or were computed with other adapters."""
        n = n_common(self._tokens, tokens) if self._adapters == adapters else 0
        if n == len(self._tokens):
            return
        self._tokens = self._tokens[:n]
        for at in [at for at in self._filled if at >= n]:
            self._rows[at] = 0
            self._filled.discard(at)
        if self._newest is not None and self._newest[0] >= n:
            self._newest = None

    def begin(self, tokens: Sequence[int], adapters: Adapters) -> None:
        """keep(), and rows of these tokens come next."""
        self.keep(tokens, adapters)
        self._tokens, self._adapters = list(tokens), adapters

    def put(self, at: int, row: Logits) -> None:
        """The row of a token, [n_vocab]; copied."""
        self._newest = (at, np.array(row))
        if at < len(self._rows):
            self._rows[at] = row
            self._filled.add(at)

    def has(self, at: int) -> bool:
        """Whether the table has the row of a token."""
        return at in self._filled

    def newest(self, at: int) -> Logits | None:
        """The row of a token, if it is the one that came last."""
        return self._newest[1] if self._newest is not None and self._newest[0] == at else None
