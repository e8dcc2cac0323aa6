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
PURE = ("events", "answer", "plot", "conversation", "markdown")
_IMPORT = re.compile(r"^import .*?;$", re.MULTILINE | re.DOTALL)
# As much of a browser's document as the scripts that build elements ask for.
_ELEMENTS = """
    class Part {
        constructor(name, text = null) {
            Object.assign(this, { name, text, childNodes: [], attributes: {} });
        }
        append(...parts) {
            for (const one of parts) {
                const part = typeof one === "string" ? new Part(null, one) : one;
                part.parent = this;
                this.childNodes.push(part);
            }
        }
        remove() { this.parent.childNodes.splice(this.parent.childNodes.lastIndexOf(this), 1); }
        get lastChild() { return this.childNodes.at(-1); }
        setAttribute(key, value) { this.attributes[key] = value; }
        set textContent(text) { this.childNodes = []; this.append(text); }
        toJSON() {
            if (this.name === null) return this.text;
            return [this.name, this.attributes, ...this.childNodes];
        }
    }
    globalThis.document = { createElement: (name) => new Part(name) };
"""


class Scripts:
    """The exports of the page's modules, called with data and answered with data."""

    def __init__(self) -> None:
        self._context = quickjs.Context()
        self._context.eval(_ELEMENTS)
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
