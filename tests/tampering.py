"""Faults in the rows on their way to a draft, for tests that detect them.

Each class precedes a drafter that reads rows: `class Late(Shifted, Eagle3)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pyllama_spec.drafters import Committed, Drafter, DraftRequest, Features
from pyllama_spec.engine import Batch

Rows = npt.NDArray[np.float32]


class Tampered(Drafter):
    def tamper(self, features: Features) -> Features:
        raise NotImplementedError

    def commit(self, done: Sequence[Committed]) -> None:
        super().commit(
            [c._replace(features=self.tamper(c.features)) if c.features else c for c in done]
        )


class Shifted(Tampered):
    """Each token has the row of the one before, across batches too."""

    _carried: list[Rows] | None = None

    def tamper(self, features: Features) -> Features:
        last = self._carried or [np.zeros_like(rows[:1]) for rows in features]
        self._carried = [rows[-1:].copy() for rows in features]
        return [
            np.concatenate((first, rows[:-1])) for first, rows in zip(last, features, strict=True)
        ]


class Permuted(Tampered):
    def tamper(self, features: Features) -> Features:
        return [rows[:, ::-1] for rows in features]


class NotANumber(Tampered):
    def tamper(self, features: Features) -> Features:
        return [np.full_like(rows, np.nan) for rows in features]


class Swapped(Tampered):
    def tamper(self, features: Features) -> Features:
        return [rows[::-1] for rows in features]


class Deaf(Drafter):
    """It is told another last token than was committed."""

    def commit(self, done: Sequence[Committed]) -> None:
        super().commit(
            [c._replace(tokens=[*c.tokens[:-1], (c.tokens[-1] + 1) % 256]) for c in done]
        )

    def can_draft(self, request: DraftRequest) -> bool:
        return request.n_requested > 0


class Decoding(Protocol):
    """The memory of a draft, or whatever else decodes for it."""

    def decode(self, batch: Batch) -> None:
        """A decode of the draft."""


def interrupt_decode(memory: Decoding, at: int, *, is_before: bool) -> None:
    """Ctrl-C at the draft's at-th decode from now on, right before it or right after it."""
    n_calls, decode = 0, memory.decode

    def interrupted(batch: Batch) -> None:
        nonlocal n_calls
        n_calls += 1
        if n_calls == at and is_before:
            raise KeyboardInterrupt
        decode(batch)
        if n_calls == at:
            raise KeyboardInterrupt

    memory.decode = interrupted  # type: ignore[method-assign]
