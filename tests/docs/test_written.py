"""Pages that programs write are what the programs would write now."""

from __future__ import annotations

from tools.docs import command_line, results


def test_the_command_line_is_that_of_the_parsers() -> None:
    written = command_line.PAGE.read_text(encoding="utf-8")
    assert written == command_line.page(), "make docs-pages writes it anew"


def test_the_results_are_those_of_the_files() -> None:
    written = results.PAGE.read_text(encoding="utf-8")
    assert written == results.page(), "make docs-pages writes it anew"
