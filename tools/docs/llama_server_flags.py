"""The page of llama-server's flags, made from the tables of options when the site is built.

The tables are read as text, since the site is built without an engine.
"""

from __future__ import annotations

import ast
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[2] / "pyllama_spec"
SOURCES = (
    "llama/open_options.py", "requests/options.py", "server/settings.py", "server/llama_server.py",
)  # fmt: skip
_HEAD = """# From llama-server, flag by flag
The flags of llama-server that `pyllama-spec-llama-server` takes, and what each one sets: a keyword of [`Llama()`](api/llama.md), an option of a request, or one of the server. An environment variable counts where its flag is not given. What is not in this table is refused or has no effect, and the program says so when it starts. What differs in practice, with an example: [From llama-server](moving-server.md).

<div class="options" markdown>

| flag | variable | sets |
|---|---|---|"""  # noqa: E501 - each paragraph of the page is one line


def page() -> str:
    """The whole page: fields with option(...) in the tables, of which some are flags there."""
    lines = [_HEAD]
    for source in SOURCES:
        for node in ast.walk(ast.parse((_PACKAGE / source).read_text("utf-8"))):
            if not (isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Call)):
                continue
            words = {
                one.arg: str(one.value.value) for one in node.value.keywords
                if isinstance(one.value, ast.Constant)
            }  # fmt: skip
            for flags, variable in (("server", "variable"), ("server_off", "variable_off")):
                if flags in words and isinstance(node.target, ast.Name):
                    names = ", ".join(f"`{name}`" for name in words[flags].split())
                    named = f"`LLAMA_{words[variable]}`" if variable in words else ""
                    lines.append(f"| {names} | {named} | `{node.target.id}` |")
    return "\n".join([*lines, "", "</div>", ""])
