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
from pyllama_spec.errors import ArgumentError, shown

_WORD = r"[^\W\d]\w*"
_OWN_DRAFTER = re.compile(rf"({_WORD}(?:\.{_WORD})*):({_WORD})")
HELP = "or MODULE:FUNCTION, which makes a drafter of your own"
# The drafters of the command that runs.
_made: list[Drafter] = []


@contextmanager
def own_drafts_closed() -> Iterator[None]:
    """Around a command: closes the drafters that it made."""
    try:
        yield
    finally:
        while _made:
            _made.pop().close()


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
        drafter = getattr(import_module(module), name)()
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        what = f"{type(error).__name__}: {error!s:.300}"
        raise ArgumentError(
            "draft", draft,
            problem=f"failed: {what} ({Path(frame.filename).name}, line {frame.lineno})",
        ) from error  # fmt: skip
    if not isinstance(drafter, Drafter):
        raise ArgumentError("draft", draft, "a Drafter", problem=f"gives {shown(drafter)}")
    _made.append(drafter)
    return drafter
