"""-d MODULE:FUNCTION: opens a drafter from a user's module.

It runs that module's code, as `python -c "import MODULE"` would. So it is an option of a command
that its user types, and nothing else: no server's request, no file of models and no Llama(draft=)
comes here.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from pyllama_spec.drafters import Drafter
from pyllama_spec.errors import ArgumentError, PyllamaSpecError, shown, warn

_WORD = r"[^\W\d]\w*"
_OWN_DRAFTER = re.compile(rf"({_WORD}(?:\.{_WORD})*):({_WORD})")
HELP = "or MODULE:FUNCTION, which makes a drafter of your own"
# The drafters of the command that runs.
_made: list[Drafter] = []


@contextmanager
def own_drafts_closed() -> Iterator[None]:
    """Around a command: closes the drafters that it made, and warns of a close() that raises."""
    try:
        yield
    finally:
        while _made:
            drafter = _made.pop()
            try:
                drafter.close()
            except Exception as error:  # noqa: BLE001 - a user's code; the command has ended
                kind, where = type(drafter).__name__, _place(error)
                warn(
                    f"the drafter {kind} failed in close(): {type(error).__name__}: "
                    f"{error!s:.300} ({where}); what it holds is freed when the process ends"
                )


def own_draft(draft: str) -> str | Drafter:
    """Calls the function that -d MODULE:FUNCTION names; returns any other text unchanged.

    The module is looked for where Python looks, and last in the current folder. A class is such a
    function too, if it takes no arguments.
    """
    found = _OWN_DRAFTER.fullmatch(draft)
    if found is None or Path(draft).exists():
        return draft
    module, name = found.groups()
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        function = getattr(import_module(module), name, None)
    except Exception as error:
        raise _failed(draft, f"importing {module}", error) from error
    if not callable(function):
        raise ArgumentError(
            "draft", draft, f"a function of {module}", problem=f"names no function {name}"
        )
    try:
        drafter = function()
    except Exception as error:
        raise _failed(draft, f"{name}()", error) from error
    if not isinstance(drafter, Drafter):
        raise ArgumentError("draft", draft, "a Drafter", problem=f"gives {shown(drafter)}")
    _made.append(drafter)
    return drafter


def _place(error: Exception) -> str:
    """The file and the line that raised."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(frame.filename).name}, line {frame.lineno}"


def _failed(draft: str, what: str, error: Exception) -> ArgumentError:
    """The error of a user's code in one line, with its place."""
    if isinstance(error, PyllamaSpecError):
        return ArgumentError("draft", draft, problem=f"failed: {what}: {error}")
    return ArgumentError(
        "draft", draft,
        problem=f"failed: {what}: {type(error).__name__}: {error!s:.300} ({_place(error)})",
    )  # fmt: skip
