"""Lets this environment's Python find the installed package before a folder of the same name.

    .venv/bin/python tools/installed_first.py [--remove]

Tests run in the root of the repository, which Python searches first. They would import the source
tree, which has no compiled engine, instead of the installed wheel. This script installs a finder
that each interpreter of the environment loads by a .pth file. Needs only the standard library.
"""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

_NAME = "_pyllama_spec_installed_first"
_FINDER = '''"""Finds the installed pyllama_spec first: written by tools/installed_first.py."""

import os
import sys
from importlib.machinery import PathFinder


class InstalledFirst:
    """A finder for one package in one place."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        """The package that lies beside this file."""
        if name != "pyllama_spec":
            return None
        return PathFinder.find_spec(name, [os.path.dirname(__file__)], target)


sys.meta_path.insert(0, InstalledFirst)
'''


def main() -> None:
    """Writes the finder, or removes it."""
    folder = Path(sysconfig.get_path("purelib"))
    module, line = folder / f"{_NAME}.py", folder / f"{_NAME}.pth"
    if sys.argv[1:] == ["--remove"]:
        module.unlink(missing_ok=True)
        line.unlink(missing_ok=True)
        return
    if not (folder / "pyllama_spec").is_dir():
        raise SystemExit(f"no pyllama_spec is installed in {folder}: pip install dist/*.whl first")
    module.write_text(_FINDER, encoding="utf-8")
    line.write_text(f"import {_NAME}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
