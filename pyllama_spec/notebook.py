"""Progress bars of notebooks: tqdm's, where a notebook runs and tqdm is installed."""

from __future__ import annotations

import contextlib
import importlib
import sys
from typing import Any


def is_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    # Who runs in one has imported it.
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and hasattr(shell, "kernel")


def notebook_bar(label: str) -> Any:
    """A bar of 100 steps of tqdm.notebook, or of its text where widgets are missing; else None."""
    if not is_notebook():
        return None
    options: dict[str, Any] = {"total": 100, "desc": label, "leave": False}
    options["bar_format"] = "{desc}: {percentage:3.0f}% {bar} {postfix}"
    for name in ("tqdm.notebook", "tqdm"):
        with contextlib.suppress(ImportError):  # tqdm's own too, where widgets are missing
            return importlib.import_module(name).tqdm(**options)
    return None
