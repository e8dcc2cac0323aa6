"""Fields of requests that the server does not know: accepted, and named once in the log."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec

from pyllama_spec.engine.checks import meant

_log = logging.getLogger("pyllama_spec.server")
# The names of as many fields at most: clients choose them.
_MOST = 64
# What may be in the log: a client could write a text in the place of a name.
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,39}")
# Published fields on which no answer depends.
_QUIET = frozenset((
    "metadata", "service_tier", "store", "safety_identifier", "prompt_cache_key",
    "prompt_cache_retention", "truncation", "include", "cache_control", "cache_prompt",
    "client_metadata", "max_tool_calls", "betas",
))  # fmt: skip


class Seen(dict[str, Any]):
    """A body that records which of its fields are read by get().

    Attributes:
        names: their names.

    """

    def __init__(self, body: Mapping[str, Any]) -> None:
        super().__init__(body)
        self.names: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        """A field, or the default."""
        self.names.add(name)
        return super().get(name, default)


class UnknownFields:
    """Says each unknown field once; see the module's docstring."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def note(self, path: str, names: Iterable[str], known: Collection[str]) -> None:
        """Warns of the unknown ones among the fields of a request.

        Args:
            path: of the endpoint.
            names: of all fields of the request.
            known: the names that the endpoint knows.

        """
        for name in names:
            if name in known or name in _QUIET or name in self._said or not _NAME.fullmatch(name):
                continue
            if len(self._said) >= _MOST:
                return
            self._said.add(name)
            _log.warning(
                "%s: the field %s is not known here and changes nothing%s", path, name,
                meant(name, known),
            )  # fmt: skip
            if len(self._said) == _MOST:
                _log.warning("further fields that are not known are not named")


def names_of(raw: bytes) -> dict[str, msgspec.Raw]:
    """The fields of a body that was decoded, as JSON; none where a name is no text.

    A name that no field has, as with half of a character, was skipped by the decoder.
    """
    try:
        return msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}
