"""What a schema cannot be, and how much work one may make: the errors, and the count."""

from __future__ import annotations

from pyllama_spec.errors import SchemaError

# Steps of the walk over a schema, rules and elements of the grammar: some seconds of work at most.
MAX_STEPS = 300_000


class TooLargeError(Exception):
    """Some part takes more states or steps than are allowed; caught where its name is known."""


class Budget:
    """Counts steps, so that no schema takes for ever.

    Steps are counted and not seconds: whether a schema is refused must not depend on the machine.
    """

    def __init__(self) -> None:
        self._left = MAX_STEPS

    def spend(self, n: int = 1) -> None:
        """Counts n steps.

        Raises:
            TooLargeError: there were too many.

        """
        self._left -= n
        if self._left < 0:
            raise TooLargeError("it takes too many steps")


def cannot(keyword: str, path: str, why: str, remedy: str) -> SchemaError:
    """The error for what a grammar cannot hold."""
    return SchemaError(
        f'the schema cannot be kept: "{keyword}" at {path}: {why}. {remedy}',
        keyword,
        path,
        is_beyond=True,
    )


def malformed(keyword: str, path: str, why: str) -> SchemaError:
    """The error for what is no schema."""
    return SchemaError(f'the JSON schema is malformed: "{keyword}" at {path} {why}', keyword, path)
