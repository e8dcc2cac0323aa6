"""Pages that programs write are what the programs would write now."""

from __future__ import annotations

import argparse
import re
import xml.etree.ElementTree as ET
from pathlib import Path

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
    for text in results.pictures().values():
        root = ET.fromstring(text)
        bars = [one for one in root.iter() if one.tag.endswith("path")]
        assert len(bars) == len(runs)
        for run in runs:
            assert f">{run['summary']['speedup']:.2f}</text>" in text
    ended = {**runs[0], "interrupted": True}
    assert not charts.is_drawn(ended)
    assert charts.is_drawn(runs[0])


def test_choices_are_told_apart_from_what_is_taken_without_the_option() -> None:
    """`without it, the draft's own: f32, ...` read as if these were the draft's own."""
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
    """A figure without one cannot be compared with a later one."""
    sections = re.split(r"^## ", page.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    assert sections
    for section in sections:
        assert re.search(r"\b20\d\d-\d\d-\d\d\b", section), section.partition("\n")[0]
