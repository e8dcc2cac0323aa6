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

    return get, public_names(package, packages)


def public_names(package: str, more: Sequence[str] = ()) -> Callable[[], list[str]]:
    """__dir__ of a package: what is in __all__, and nothing that only its own code needs."""
    own = vars(sys.modules[package])

    def listed() -> list[str]:
        return sorted({*own["__all__"], *more, *(name for name in own if name.startswith("__"))})

    return listed
