"""The page that compares with llama-cpp-python, made from beside.json when the site is built.

`python -m tools.comparison.probe` writes the calls and signatures there, those that are not the
same.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tools.comparison.calls import CALLS

DATA = Path(__file__).with_name("beside.json")
WORDS = {
    "same": "the same shapes, keys, types and values",
    "better": "more than there, or another answer that is meant so",
    "differs": "another answer, on purpose",
    "refused": "refused, with a reason",
    "missing": "fails here",
    "worse": "another answer, without a reason",
    "fails there": "works here alone",
    "both fail": "refused by both",
}
_CALLS = """# Call by call, beside llama-cpp-python {version}
`python -m tools.comparison.probe` makes every call below in both packages, in one environment and two processes, on SmolLM2-135M in Q4_0 and on toys. It compares types, keys and values, floats to a quarter, and streams by their text. `speculation` and `timing`, and `usage` in the last chunk of a stream, are additions of this package. tools/comparison/calls.py says what the names in the calls are. Of calls that are marked `any` in tools/comparison/calls.txt only types and keys are compared.

{n} calls; {n_there} work there. Of those {n_good} are the same or better here ({share:.1%}).

| | calls | |
|---|---|---|"""  # noqa: E501 - each paragraph of the page is one line


def data() -> dict[str, Any]:
    """What was compared last."""
    return dict(json.loads(DATA.read_text("utf-8")))


def keep(**parts: Any) -> None:
    """Writes these parts of the file anew."""
    DATA.write_text(json.dumps({**data(), **parts}, indent=1) + "\n", encoding="utf-8")


def _cell(text: str) -> str:
    text = " ".join(text.split()).replace("|", "\\|")
    return text if len(text) <= 240 else f"{text[:237]}..."


def calls_page() -> str:
    """The page of the calls and signatures."""
    kept = data()
    verdicts = {code: kept["calls"].get(code, "same").partition(": ") for _, code, _ in CALLS}
    counted = Counter(word for word, _, _ in verdicts.values())
    n_there = len(CALLS) - counted["fails there"] - counted["both fail"]
    n_good = counted["same"] + counted["better"]
    lines = [
        _CALLS.format(
            version=kept["llama_cpp_python"], n=len(CALLS), n_there=n_there, n_good=n_good,
            share=n_good / n_there,
        ),
        *(f"| {word} | {counted[word]} | {what} |" for word, what in WORDS.items()),
    ]  # fmt: skip
    group = ""
    for name, code, _ in CALLS:
        if name != group:
            group = name
            lines += ["", f"## {group}", "| call | | |", "|---|---|---|"]
        word, _, why = verdicts[code]
        # Two backticks: a call may contain one.
        lines.append(f"| `` {_cell(code)} `` | {word} | {_cell(why)} |")
    return "\n".join([*lines, "", *_signatures(kept), ""])


def _signatures(kept: Mapping[str, Any]) -> Iterator[str]:
    n_same = kept["n_signatures"] - len(kept["signatures"])
    yield "## Signatures, by inspection"
    yield f"{kept['n_signatures']} functions, methods and properties there; {n_same} the same.\n"
    yield "| name | |\n|---|---|"
    for name, verdict in kept["signatures"].items():
        yield f"| `{name}` | {_cell(verdict)} |"
