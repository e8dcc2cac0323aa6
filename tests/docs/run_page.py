"""Runs the Python blocks of a page, in order and in one namespace: python run_page.py PAGE.

A fault shows the page's own lines.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.docs.blocks import blocks_of


def main(page: str) -> None:
    """Runs them in the folder that it was started in."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in blocks_of(Path(page)):
        if block.language == "python" and not block.mark:
            # Empty lines before, so that line numbers are those of the page.
            code = "\n" * (block.line - 1) + block.code
            print(f"-- line {block.line}", flush=True)
            exec(compile(code, page, "exec"), namespace)


if __name__ == "__main__":
    main(sys.argv[1])
