"""Imports pyllama_spec from this tree in an environment that lacks it."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from typing import Any


class _Engine(importlib.abc.MetaPathFinder):
    """Finds the compiled module where an editable install has put it."""

    def __init__(self, path: str) -> None:
        self.path = path

    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of that one module; None for others."""
        del path, target
        if name != "pyllama_spec._engine":
            return None
        return importlib.util.spec_from_file_location(name, self.path)


def find_engine(path: str) -> None:
    """Makes `import pyllama_spec` work if its sources are on the path.

    Args:
        path: the compiled module, which is the same for every Python from 3.10 on.

    """
    sys.meta_path.insert(0, _Engine(path))
