"""Names of a package that are imported on first use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, names: Mapping[str, str], packages: Sequence[str] = (), theirs: str = ""
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """__getattr__ and __dir__ of a package; type checkers are told the names by an import."""
    own = vars(sys.modules[package])

    def get(name: str) -> Any:
        if name in packages:
            return import_module(f"{package}.{name}")
        if name not in names:
            hint = ""
            if theirs and hasattr(import_module(theirs), name):
                hint = f"; the names of llama-cpp-python are in {theirs}"
            raise AttributeError(f"module {package!r} has no attribute {name!r}{hint}")
        own[name] = value = getattr(import_module(names[name]), name)
        return value

    return get, lambda: sorted({*own, *names, *packages})
