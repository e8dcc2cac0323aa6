"""Failed loads of models and adapters, and what clients are told of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pyllama_spec.errors import ModelLoadError, OutOfMemoryError, RemoteError
from pyllama_spec.server.api_errors import NO_RETRY, ApiError


class Failure(NamedTuple):
    """Why a model or an adapter could not be loaded.

    Attributes:
        why: for clients, without paths.
        at: when that was, on the clock of monotonic().
        may_pass: whether a later load may succeed though nobody changes anything, as where other
            programs have the memory.

    """

    why: str
    at: float
    may_pass: bool = False


class MissingError(ModelLoadError):
    """Files of a model do not exist."""

    def __init__(self, missing: list[tuple[str, Path]]) -> None:
        super().__init__(lacks(missing))
        self.missing = missing


class NeverFitsError(OutOfMemoryError):
    """A model takes more than all models together may."""


def may_pass(error: Exception) -> bool:
    """See Failure."""
    is_outside = isinstance(error, (OutOfMemoryError, RemoteError))
    return is_outside and not isinstance(error, NeverFitsError)


def lacks(missing: Sequence[tuple[str, Path]]) -> str:
    """The message about missing files, without paths, for clients."""
    keys = " and of its ".join(key for key, _ in missing)
    return f"the file of its {keys} does not exist"


def not_loaded(name: str, why: str, *, may_pass: bool) -> ApiError:
    """The error for a request to a model that cannot be loaded.

    Args:
        name: of the model or the adapter.
        why: see Failure.
        may_pass: see Failure; a client is only then told to come again.

    """
    message = f"the model {name!r} cannot be loaded: {why}"
    if may_pass:
        return ApiError(503, message, "model_not_loaded", "model")
    message += "; whoever runs the server has to correct that"
    return ApiError(500, message, "model_not_loaded", "model", headers=NO_RETRY)
