"""Generated pages equal what their programs would write now."""

from __future__ import annotations

import argparse
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from tools.docs import charts, command_line, results


def test_the_command_line_is_that_of_the_parsers() -> None:
    written = command_line.PAGE.read_text(encoding="utf-8")
    assert written == command_line.page(), "make docs-pages writes it anew"


def test_the_results_are_those_of_the_files() -> None:
    written = results.PAGE.read_text(encoding="utf-8")
    assert written == results.page(), "make docs-pages writes it anew"
    for path, text in results.pictures().items():
        assert path.read_text(encoding="utf-8") == text, "make docs-pages draws it anew"


def test_the_pictures_show_each_run_and_no_other() -> None:
    runs = [run for _, run in results.load()]
    for path, text in results.pictures().items():
        root = ET.fromstring(text)
        if path.name.startswith("categories"):
            continue
        bars = [one for one in root.iter() if one.tag.endswith("path")]
        assert len(bars) == len(runs)
        for run in runs:
            assert f">{charts.speed(run, run['summary']):.2f}</text>" in text
    assert charts.is_drawn(runs[0])


def test_the_pictures_show_each_draft_in_each_category() -> None:
    def what(run: Any) -> tuple[Any, ...]:
        ids = tuple(prompt["id"] for prompt in run["prompts"])
        return run["files"]["target"]["name"], run["settings"]["n_tokens"], ids

    runs = results.load()
    files = [path for path, _ in runs]
    wanted = {what(run) for path, run in runs if files.count(path) > 1}
    # A run in a file of its own stands beside those over the same prompts.
    several = [run for _, run in runs if what(run) in wanted]
    assert len(several) > sum(files.count(path) > 1 for path in files)
    expected = sorted(
        f"{charts.speed(run, one):.2f}" for run in several for one in run["categories"].values()
    )
    assert expected
    for path, text in results.pictures().items():
        if path.name.startswith("categories"):
            found = [one.text or "" for one in ET.fromstring(text).iter()]
            assert sorted(one for one in found if re.fullmatch(r"\d+\.\d\d", one)) == expected


def test_a_run_is_drawn_if_its_categories_have_as_many_prompts_each() -> None:
    whole = {"synthetic": None, "interrupted": False, "failure": None}
    odd = [{"category": name} for name in ("code", "math", "code")]
    even = [*odd, {"category": "math"}]
    assert charts.is_drawn({**whole, "prompts": odd})
    assert charts.is_drawn({**whole, "interrupted": True, "prompts": even})
    assert not charts.is_drawn({**whole, "interrupted": True, "prompts": odd})
    for end in ({"synthetic": {"seed": 1}}, {"failure": "the engine failed"}):
        assert not charts.is_drawn({**whole, **end, "prompts": even})


def test_a_busy_machine_is_measured_by_the_processor() -> None:
    figures = {"speedup": 1.1, "cpu_speedup": 1.3}

    def run(cpu_s: float, n_threads: int, summary: dict[str, float]) -> charts.Result:
        plain = {"prompt_s": 1.0, "decode_s": 3.0, "cpu_s": cpu_s}
        settings = {"n_threads": n_threads}
        return {"time": {"plain": plain}, "settings": settings, "summary": summary}

    assert charts.speed(run(3.9, 1, figures), figures) == 1.1
    assert charts.speed(run(2.0, 1, figures), figures) == 1.3
    assert charts.speed(run(3.9, 2, figures), figures) == 1.3
    older = {"speedup": 1.1}
    assert charts.speed(run(2.0, 1, older), older) == 1.1, "not measured then"


def test_choices_are_told_apart_from_what_is_taken_without_the_option() -> None:
    """The default is not read as one of the choices: `without it, the draft's own: f32, ...`."""
    parser = argparse.ArgumentParser()
    one = parser.add_argument("--type", choices=("f32", "f16"), help="without it, its own")
    two = parser.add_argument("--flash-attn", choices=("auto", "on"))
    assert command_line._row(one) == "| `--type` | without it, its own (`f32`, `f16`) |  |"
    assert command_line._row(two) == "| `--flash-attn` | `auto`, `on` |  |"


def test_the_table_of_drafts_is_the_same_wherever_it_stands() -> None:
    head = "| your model | write | why |"
    tables = [
        (results.DOCS / page).read_text(encoding="utf-8").partition(head)[2].partition("\n\n")[0]
        for page in ("../README.md", "start.md")
    ]
    assert tables[0]
    assert tables[0] == tables[1]


LOG = sorted((results.DOCS / "measurements").glob("*.md"))


def test_the_log_says_what_is_where() -> None:
    index = (results.DOCS / "measurements/index.md").read_text(encoding="utf-8")
    for page in LOG:
        assert page.name == "index.md" or f"]({page.name})" in index, f"{page.name} is not listed"


@pytest.mark.parametrize(
    "page", [page for page in LOG if page.name != "index.md"], ids=lambda page: page.stem
)
def test_what_was_measured_has_a_date(page: Path) -> None:
    """Each measured figure has a date, so that later ones can be compared."""
    sections = re.split(r"^## ", page.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    assert sections
    for section in sections:
        assert re.search(r"\b20\d\d-\d\d-\d\d\b", section), section.partition("\n")[0]


def last_date(section: str) -> str:
    """The day on which a section's measurement ended, from the line under its heading."""
    line = section.split("\n")[1]
    assert line.startswith("*Machine: "), section.partition("\n")[0]
    days: list[str] = re.findall(r"20\d\d-\d\d-\d\d", line)
    return days[-1]


@pytest.mark.parametrize(
    "page", [page for page in LOG if page.name != "index.md"], ids=lambda page: page.stem
)
def test_the_log_is_newest_first(page: Path) -> None:
    sections = re.split(r"^## ", page.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    days = [last_date(section) for section in sections]
    assert days == sorted(days, reverse=True), page.name
