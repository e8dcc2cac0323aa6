"""What programs write and git keeps equals what they would write now, and the rest can be made."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from tests.docs.blocks import ROOT
from tests.docs.commands import fault, lines_of
from tools.comparison.calls import CALLS
from tools.docs import beside, charts, command_line, results
from tools.docs.site_hooks import made

PICTURES = charts.pictures(results.shown())


def test_the_command_line_is_that_of_the_parsers() -> None:
    written = command_line.PAGE.read_text(encoding="utf-8")
    assert written == command_line.page(), "make docs-pages writes it anew"


def test_the_main_tables_and_the_kept_pictures_are_those_of_the_files() -> None:
    written = results.PAGE.read_text(encoding="utf-8")
    assert written.endswith(results.main_tables()), "make docs-pages writes them anew"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in PICTURES:
        kept = (ROOT / "docs" / "images" / name).read_text(encoding="utf-8")
        assert kept == PICTURES[name], "make docs-pages draws it anew"
        assert f"docs/images/{name}" in readme


def test_the_other_pages_can_be_made() -> None:
    """None of them is in the repository, and each has all that it is made of."""
    pages = made()
    assert not [place for place in pages if (ROOT / "docs" / place).exists()]
    assert all(text.startswith("# ") for text in pages.values())
    runs = results.load()
    for path, run in runs:
        assert path.name in pages["results-by-prompt.md"]
        assert all(f"| {one['id']} |" in pages["results-by-prompt.md"] for one in run["prompts"])
    n_rows = pages["parity-table.md"].count("\n| `` ")
    assert n_rows == len(CALLS)
    assert set(beside.data()["calls"]) <= {code for _, code, _ in CALLS}


def test_the_picture_has_a_bar_for_all_prompts_and_for_some_categories() -> None:
    run = results.shown()
    for text in PICTURES.values():
        said = [one.text or "" for one in ET.fromstring(text).iter() if one.tag.endswith("text")]
        assert f"{charts.speed(run['summary']):.2f}" in said
        named = [name for name in run["categories"] if name in said]
        assert len(named) == 4
        assert {f"{charts.speed(run['categories'][name]):.2f}" for name in named} <= set(said)


def test_each_measured_figure_says_when_and_how() -> None:
    """A line has a date, a commit, and a command of the tree or the name of one at the tag."""
    text = (ROOT / "docs" / "measurements.md").read_text(encoding="utf-8")
    lines = re.findall(r"^- .*$", text, re.MULTILINE)
    assert len(lines) > 30
    for line in lines:
        assert re.search(r"20\d\d-\d\d-\d\d, [0-9a-f]{7,8}:\* \S", line), line
        for command in re.findall(r"`((?:python|make|pyllama-spec) [^`]+)`", line):
            assert fault(next(lines_of(command))) is None, command
