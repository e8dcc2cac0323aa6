"""Names of a package that are imported on first use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from opcode import opmap
from types import FrameType
from typing import Any


def lazy_names(
    package: str, names: Mapping[str, str], packages: Sequence[str] = (), theirs: str = ""
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """__getattr__ and __dir__ of a package; type checkers are told the names by an import.

    Args:
        package: the __name__ of the package.
        names: name -> the module that has it.
        packages: subpackages that are for users.
        theirs: the module with the names of another package, which users look for here; "" for
            none.

    """
    own = vars(sys.modules[package])

    def get(name: str) -> Any:
        if name in packages:
            return import_module(f"{package}.{name}")
        if name not in names:
            raise _missing(package, name, theirs, sys._getframe(1))
        own[name] = value = getattr(import_module(names[name]), name)
        return value

    return get, public_names(package, packages)


def _missing(package: str, name: str, theirs: str, asks: FrameType) -> Exception:
    """The error of a name that a package has not, with where to find it.

    Python has words of its own for `from package import name` where that is an AttributeError, so
    that it is an ImportError there. hasattr() and getattr() need the other one.
    """
    is_like_theirs = name[:1].isupper() or name.startswith("llama_")
    if not theirs or not is_like_theirs or not hasattr(import_module(theirs), name):
        return AttributeError(f"module {package!r} has no attribute {name!r}")
    hint = f"the names of llama-cpp-python are in {theirs}: from {theirs} import {name}"
    if asks.f_code.co_code[asks.f_lasti] == opmap["IMPORT_FROM"]:
        path = sys.modules[package].__file__
        return ImportError(
            f"cannot import name {name!r} from {package!r}; {hint}", name=package, path=path
        )
    return AttributeError(f"module {package!r} has no attribute {name!r}; {hint}")


def public_names(package: str, more: Sequence[str] = ()) -> Callable[[], list[str]]:
    """__dir__ of a package: what is in __all__, and nothing that only its own code needs.

    Args:
        package: the __name__ of the package.
        more: names beside those of __all__.

    """
    own = vars(sys.modules[package])

    def listed() -> list[str]:
        return sorted({*own["__all__"], *more, *(name for name in own if name.startswith("__"))})

    return listed
