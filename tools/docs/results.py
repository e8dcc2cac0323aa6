"""The results of docs/results/: the main tables of docs/results.md, the long page, the pictures.

    pyllama-spec bench -m TARGET.gguf -d DRAFT.gguf --json run.json
    python -m tools.docs.results run.json      adds a run
    python -m tools.docs.results               writes the main tables, and the pictures of README

The page of single prompts is made when the site is built. Each figure is in one of the files. A
file of several drafts has a run for each.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.docs import charts

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE, FOLDER = DOCS / "results.md", DOCS / "results"
# The file whose first run README's picture shows.
SHOWN = "qwen2.5-coder-1.5b-q4_k_m.json"
Result = dict[str, Any]

_HEAD = """# All results, prompt by prompt
Each figure is from a file of [`pyllama-spec bench --json`](command-line.md#pyllama-spec-bench) in docs/results/. What the columns mean, and the main tables: [Results](results.md). To measure your machine and model, run the command of a section.
"""  # noqa: E501 - each paragraph of the page is one line


def load() -> list[tuple[Path, Result]]:
    """The runs, sorted by file name; the runs of one file keep its order."""
    out = []
    for path in sorted(FOLDER.glob("*.json")):
        run = json.loads(path.read_text("utf-8"))
        out += [(path, one) for one in (run, *run.get("others", ()))]
    return out


def take_in(source: Path) -> None:
    """Copies a run into docs/results/."""
    run: Result = json.loads(source.read_text("utf-8"))
    (FOLDER / source.name).write_text(json.dumps(run, indent=1) + "\n", encoding="utf-8")


def _n(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _row(name: str, one: Result, same: str) -> str:
    cells = [
        name, _n(one["plain_tps"], 1), _n(one["spec_tps"], 1), _n(one["speedup"]),
        _n(one.get("cpu_speedup")), _n(one["end_to_end_speedup"]), _n(one["acceptance_rate"]),
        _n(one["tokens_per_round"]), same,
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


_COLUMNS = (
    "plain tok/s | with the draft | speed-up | by processor time | end to end | accepted | "
    "tokens per round | same text"
)
_RULE = "|---" * 9 + "|"


def _same(run: Result) -> str:
    n = sum(prompt["same_text"] for prompt in run["prompts"])
    return f"{n} of {len(run['prompts'])}"


def _name(run: Result) -> str:
    target = Path(run["files"]["target"]["name"]).stem
    return f"{target}, {charts.draft_name(run)}, {charts.kernels(run)}"


def files() -> list[list[Result]]:
    """The runs of each file."""
    runs = load()
    return [
        [run for one, run in runs if one == path]
        for path in dict.fromkeys(path for path, _ in runs)
    ]


def shown() -> Result:
    """The run of README's picture."""
    return next(run for path, run in load() if path.name == SHOWN)


def main_tables() -> str:
    """The tables of docs/results.md, from its first heading of a table to its end."""
    return "\n".join([*_overview(), *_categories()]).rstrip() + "\n"


def _overview() -> Iterator[str]:
    yield "## All runs"
    yield "| run | speed-up | worst prompt | accepted | tokens per round | same text |"
    yield "|---" * 6 + "|"
    for _, run in load():
        worst = min(map(charts.speed, run["prompts"]))
        one = run["summary"]
        figures = (
            charts.speed(one), worst, one["acceptance_rate"], one["tokens_per_round"],
        )  # fmt: skip
        cells = " | ".join(_n(figure) for figure in figures)
        yield f"| {_name(run)} | {cells} | {_same(run)} |"
    yield ""


def _categories() -> Iterator[str]:
    """For each target with runs of several drafts: every draft in every category."""
    for table in map(charts.table_of, charts.in_categories(files())):
        yield f"## {table.model}: each draft in each category"
        yield f"| draft | {' | '.join(table.categories)} |"
        yield "|---" * (len(table.categories) + 1) + "|"
        for draft, speeds in table.rows:
            yield f"| {draft} | {' | '.join(_n(one) for one in speeds)} |"
        yield ""


def _machine(run: Result) -> str:
    n, load = run["settings"]["n_threads"], run["load_average_start"][0]
    return (
        f"{run['machine']['cpu_model']}, {n} thread{'s' if n > 1 else ''}, row kernels "
        f"{charts.kernels(run)}; load average {load:.0f} at the start"
    )


def _section(path: Path, run: Result) -> Iterator[str]:
    yield f"\n## {_name(run)}"
    if run["command"] is not None:  # None for a draft that no option names
        yield f"```text\n{run['command']}\n```\n"
    line = f"{run['started'][:10]}; {_machine(run)}. All figures: docs/results/{path.name}."
    spread = run["summary"]["speedup_over_repeats"]
    if spread is not None and run["settings"]["repeats"] > 1:
        line += (
            f" Speed-up of each of {run['settings']['repeats']} repeats over all prompts: median "
            f"{spread['median']:.2f} ({spread['min']:.2f} .. {spread['max']:.2f})."
        )
    yield line
    for note in run["notes"]:
        yield f"\nNote: {note}."
    yield f"\n| prompts | {_COLUMNS} |\n{_RULE}"
    for name, one in run["categories"].items():
        same = [prompt["same_text"] for prompt in run["prompts"] if prompt["category"] == name]
        yield _row(name, one, f"{sum(same)} of {len(same)}")
    yield "\n### Prompt by prompt: " + _name(run)
    yield f"| prompt | {_COLUMNS} |\n{_RULE}"
    for prompt in run["prompts"]:
        yield _row(prompt["id"], prompt, "yes" if prompt["same_text"] else "no")


def page() -> str:
    """The page of single prompts."""
    parts = [_HEAD]
    for path, run in load():
        parts += _section(path, run)
    return "\n".join(parts).rstrip() + "\n"


def main(argv: list[str]) -> None:
    """Adds the given runs, and writes the main tables and the pictures."""
    for name in argv:
        take_in(Path(name))
    by_hand, _, _ = PAGE.read_text("utf-8").partition("## All runs\n")
    PAGE.write_text(by_hand + main_tables(), encoding="utf-8")
    print(f"wrote {PAGE}")
    for name, text in charts.pictures(shown()).items():
        (DOCS / "images" / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
