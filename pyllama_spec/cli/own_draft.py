"""-d MODULE:FUNCTION: opens a drafter from a user's module.

It runs that module's code, as `python -c "import MODULE"` would. So it is an option of a command
that its user types, and nothing else: no server's request, no file of models and no Llama(draft=)
comes here.
"""

from __future__ import annotations

import sys
import traceback
from importlib import import_module
from pathlib import Path

from pyllama_spec.drafters import Drafter
from pyllama_spec.drafters.base import check_proposes
from pyllama_spec.drafters.registry import OWN_DRAFTER
from pyllama_spec.errors import ArgumentError, PyllamaSpecError, shown

HELP = "or MODULE:FUNCTION, which makes a drafter of your own"


def own_draft(draft: str) -> str | Drafter:
    """Calls the function that -d MODULE:FUNCTION names; returns any other text unchanged.

    The module is looked for where Python looks, and last in the current folder. A class is such a
    function too, if it takes no arguments.

    Raises:
        ArgumentError: there is no such module or function, it fails, or it does not return a
            Drafter.

    """
    found = OWN_DRAFTER.fullmatch(draft)
    if found is None or Path(draft).exists():
        return draft
    module, name = found.groups()
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        function = getattr(import_module(module), name, None)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise _failed(draft, f"importing {module}", error) from error
        raise ArgumentError(
            f"draft={draft}: there is no module {error.name!r}, neither in {here} nor where Python "
            "looks (PYTHONPATH)"
        ) from None
    except Exception as error:
        raise _failed(draft, f"importing {module}", error) from error
    if not callable(function):
        kind = type(function).__name__
        what = f"has no {name}" if function is None else f"has a {name} of type {kind}"
        raise ArgumentError(f"draft={draft}: the module {module} {what}; name a function of it")
    try:
        drafter = function()
        if isinstance(drafter, Drafter):
            check_proposes(drafter)
    except Exception as error:
        raise _failed(draft, f"{name}()", error) from error
    if not isinstance(drafter, Drafter):
        raise ArgumentError(
            f"draft={draft}: {name}() returns {shown(drafter)}, which is not a Drafter"
        )
    return drafter


def _failed(draft: str, what: str, error: Exception) -> ArgumentError:
    """The error of a user's code in one line, with its place."""
    if isinstance(error, PyllamaSpecError):
        return ArgumentError(f"draft={draft}: {what} failed: {error}")
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{Path(frame.filename).name}, line {frame.lineno}"
    return ArgumentError(
        f"draft={draft}: {what} failed: {type(error).__name__}: {error!s:.300} ({place})"
    )
