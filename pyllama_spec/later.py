"""Names that a package hands out and imports when they are asked for, not before."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def later(
    package: str, names: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """__getattr__ and __dir__ of a package; type checkers are told the names by an import.

    Args:
        package: its __name__.
        names: name -> the module that has it.

    """
    own = vars(sys.modules[package])

    def get(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        own[name] = found = getattr(import_module(names[name]), name)
        return found

    def listed() -> list[str]:
        return sorted({*own, *names})

    return get, listed
