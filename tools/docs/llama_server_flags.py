"""The page of llama-server's flags, made from the table of the command when the site is built.

The table is read as text, since the site is built without an engine.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).resolve().parents[2] / "pyllama_spec/server/llama_server_flags.py"
_HEAD = """# From llama-server, flag by flag
The flags of llama-server that `pyllama-spec-llama-server` takes, and what each one sets: a keyword of [`Llama()`](api/llama.md), an option of a request, or one of the server. An environment variable counts where its flag is not given. What is not in this table is refused or has no effect, and the program says so when it starts. What differs in practice, with an example: [From llama-server](moving-server.md).

<div class="options" markdown>

| flag | variable | sets |
|---|---|---|"""  # noqa: E501 - each paragraph of the page is one line


class Row(NamedTuple):
    """A flag: its names, its environment variable or "", and the field that it sets."""

    names: tuple[str, ...]
    variable: str
    field: str


def _words(node: ast.expr) -> tuple[str, ...]:
    """The words of a text, or of a tuple of texts."""
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return ()
    found = value.split() if isinstance(value, str) else value
    is_text = isinstance(found, (list, tuple)) and all(isinstance(one, str) for one in found)
    return tuple(found) if is_text else ()


def rows() -> list[Row]:
    """The rows of the table: calls with a flag's names, its field and perhaps its variable."""
    found = []
    for node in ast.walk(ast.parse(SOURCE.read_text("utf-8"))):
        if not isinstance(node, ast.Call) or len(node.args) < 2:
            continue
        names, field = _words(node.args[0]), _words(node.args[1])
        if names and all(name.startswith("-") for name in names) and len(field) == 1:
            given = [*node.args[2:], *(one.value for one in node.keywords)]
            texts = [word for one in given for word in _words(one) if word.isupper()]
            found.append(Row(names, f"LLAMA_{texts[0]}" if texts else "", field[0]))
    return found


def page() -> str:
    """The whole page."""
    lines = [_HEAD]
    for row in rows():
        names = ", ".join(f"`{name}`" for name in row.names)
        variable = f"`{row.variable}`" if row.variable else ""
        lines.append(f"| {names} | {variable} | `{row.field}` |")
    return "\n".join([*lines, "", "</div>", ""])
