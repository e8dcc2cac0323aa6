"""A request in line or in a place of parallel.py."""

from __future__ import annotations

import copy
import threading
from collections import deque
from dataclasses import dataclass, field

from pyllama_spec.requests.detokenizer import Piece
from pyllama_spec.requests.job import Job
from pyllama_spec.speculative import SequenceState


@dataclass(slots=True, eq=False)
class Ticket:
    """A request in line, or in a place.

    Attributes:
        job: the request.
        ready: notified when there are pieces, or it is over.
        max_ahead: how many pieces it may be ahead of its reader; None for a text that is read as a
            whole.
        reader: the thread that read it last.
        pieces: computed, not read.
        finish: why its text ends; None before.
        error: what ended it instead.

    """

    job: Job
    ready: threading.Condition
    max_ahead: int | None
    reader: int
    pieces: deque[Piece] = field(default_factory=deque)
    state: SequenceState | None = None
    finish: str | None = None
    error: BaseException | None = None
    is_cancelled: bool = False

    @property
    def is_over(self) -> bool:
        """Whether its text has come to an end, or an error."""
        return self.finish is not None or self.error is not None

    @property
    def is_paused(self) -> bool:
        """Whether it waits for its reader."""
        return self.max_ahead is not None and len(self.pieces) >= self.max_ahead


def copy_of(error: BaseException) -> BaseException:
    """One for each request: they carry what was generated. Some exceptions cannot be copied."""
    try:
        return copy.copy(error)
    except Exception:  # noqa: BLE001 - one of the user's
        return error
