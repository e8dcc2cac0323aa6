"""docs/schemas.md describes each keyword as the code treats it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pyllama_spec.errors import SchemaError
from pyllama_spec.schema import schema_rules
from pyllama_spec.schema.formats import FREE_FORMATS, KEPT_FORMATS, NUMBER_FORMATS
from pyllama_spec.schema.keywords import ANNOTATIONS, KEPT, REFUSED

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "schemas.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (`.*?) \| (kept|refused|annotation) \|", PAGE, re.MULTILINE)


def _named(kind: str) -> list[str]:
    return [
        name for names, is_kind in ROWS if is_kind == kind for name in re.findall("`(.*?)`", names)
    ]


def test_each_keyword_has_one_row() -> None:
    assert sorted(_named("kept")) == sorted(KEPT)
    assert sorted(_named("refused")) == sorted(REFUSED)
    assert set(_named("annotation")) <= ANNOTATIONS


@pytest.mark.parametrize("keyword", _named("refused"))
def test_what_is_refused_is_refused(keyword: str) -> None:
    with pytest.raises(SchemaError) as caught:
        schema_rules({"type": "object", "properties": {"a": {keyword: True}}})
    assert (caught.value.keyword, caught.value.path) == (keyword, "#/properties/a")


def test_formats_are_those_of_the_code() -> None:
    table = PAGE.partition("\n| format |")[2].partition("\n\n")[0]
    cells = [row.split(" | ")[0] for row in table.splitlines()[2:]]
    named = [name for cell in cells for name in re.findall("`(.*?)`", cell)]
    assert sorted(named) == sorted({*KEPT_FORMATS, *FREE_FORMATS, *NUMBER_FORMATS})
