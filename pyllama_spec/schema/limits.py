"""The errors of schemas, and the bound on the work that one may cause."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pyllama_spec.errors import SchemaError, clipped

# Steps of all that a schema asks for, its patterns and numbers too: a second of work at most.
MAX_STEPS = 300_000
# Parts looked at for one set of texts.
MAX_PARTS = 200_000
# Steps of a millisecond or less. After so many the threads that wait for Python's lock get it: they
# would else wait for five milliseconds, each time that the engine comes back to them.
_STEPS_AT_ONCE = 256
_REST_S = 1e-5
_MAX_PATH = 200
_REMEDY = "write it with fewer parts, shorter bounds or simpler patterns"


class TooLargeError(Exception):
    """A part exceeds the limit of states or steps; caught where its keyword is known."""


class OutOfStepsError(Exception):
    """The whole schema exceeds the limit of steps, `most`; no single part is the cause."""

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self.most = most


class Budget:
    """Counts steps, so that a schema cannot block other threads for long.

    Steps are counted and not seconds: whether a schema is refused must not depend on the machine.
    """

    def __init__(self, n: int = MAX_STEPS) -> None:
        self._n, self._left, self._until_rest = n, n, _STEPS_AT_ONCE

    @property
    def n_spent(self) -> int:
        """The number of steps so far."""
        return self._n - self._left

    def spend(self, n: int = 1) -> None:
        """Counts n steps."""
        self._left -= n
        self._until_rest -= n
        if self._left < 0:
            raise OutOfStepsError(self._n)
        if self._until_rest <= 0:
            self._until_rest = _STEPS_AT_ONCE
            if threading.active_count() > 1:
                time.sleep(_REST_S)


class Work(threading.local):
    """The work of a thread on a schema, and on one set of texts in it: `n_spent` steps so far."""

    def __init__(self) -> None:
        self.n_spent = 0
        self._left = MAX_PARTS
        self._budget: Budget | None = None

    @contextmanager
    def on(self, budget: Budget) -> Iterator[None]:
        """Counts all steps in the block against `budget`."""
        before, self._budget = self._budget, budget
        try:
            yield
        finally:
            self._budget = before

    def begin(self) -> None:
        """Starts the count of another set of texts."""
        self._left = MAX_PARTS

    def spend(self, n: int) -> None:
        """Counts n parts of the current set of texts."""
        self.n_spent += n
        self._left -= n
        if self._left < 0:
            raise TooLargeError("it has too many alternatives")
        if self._budget is not None:
            self._budget.spend(n)


WORK = Work()


def place(path: str) -> str:
    """A JSON pointer for a message."""
    return clipped(path, _MAX_PATH)


def out_of_steps(path: str, most: int) -> SchemaError:
    """The error for a schema that needs more than `most` steps; `path` is where they ran out."""
    return SchemaError(
        f"the schema is too much for a grammar: it takes more than {most:,} steps, which "
        f"ended at {place(path)}", path=path, remedy=_REMEDY, is_beyond=True,
    )  # fmt: skip


def cannot(keyword: str, path: str, why: str, remedy: str) -> SchemaError:
    """The error for a keyword that a grammar cannot express."""
    return SchemaError(
        f'the schema cannot be kept: "{keyword}" at {place(path)}: {why}', keyword, path,
        remedy=remedy, is_beyond=True,
    )  # fmt: skip


def malformed(keyword: str, path: str, why: str) -> SchemaError:
    """The error for a malformed schema."""
    message = f'the JSON schema is malformed: "{keyword}" at {place(path)} {why}'
    return SchemaError(message, keyword, path)
