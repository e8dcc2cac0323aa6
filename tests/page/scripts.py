"""The page's scripts that know no browser, run in QuickJS."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import quickjs

import pyllama_spec.server

PAGE = Path(pyllama_spec.server.__file__).parent / "page"
# In the order of their imports. No two of them have one name for two things.
PURE = ("events", "answer", "plot", "conversation")
_IMPORT = re.compile(r"^import .*?;$", re.MULTILINE | re.DOTALL)


class Scripts:
    """The exports of the page's modules, called with data and answered with data."""

    def __init__(self) -> None:
        self._context = quickjs.Context()
        for name in PURE:
            source = (PAGE / f"{name}.js").read_text(encoding="utf-8")
            # QuickJS gives no module's exports to Python: as one script they are names of it.
            self._context.eval(re.sub(r"^export ", "", _IMPORT.sub("", source), flags=re.MULTILINE))

    def run(self, body: str, **values: Any) -> Any:
        """The return value of a function with this body and these arguments; all of it JSON."""
        names = ", ".join(values)
        given = ", ".join(json.dumps(value) for value in values.values())
        answer = self._context.eval(f"JSON.stringify((({names}) => {{{body}}})({given})) ?? 'null'")
        return json.loads(str(answer))
