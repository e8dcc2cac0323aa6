"""Layer ids of DFlash drafts: the list's name decides what they count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pyllama_spec.errors import ConversionError
from tests.convert.dflash_tools import (
    DSPARK_LAYOUTS,
    LAYOUTS,
    convert_written,
    make_draft,
)

CASES = [
    *(("dflash", layout) for layout in LAYOUTS),
    *(("dspark", layout) for layout in DSPARK_LAYOUTS),
    ("dflash2", "zlab"),
]


@pytest.mark.parametrize(("kind", "layout"), CASES)
def test_the_caller_decides(tmp_path: Path, kind: str, layout: str) -> None:
    draft = make_draft(kind)
    written = (2, 5, 7) if layout in ("speculators", "redhat") else (1, 4, 6)
    for counted, shift in (("input", 0), ("output", 1)):
        report = convert_written(tmp_path, layout, draft, layer_ids=counted)
        assert report.target_layers == tuple(k + shift for k in written)
        assert report.layer_ids == counted


@pytest.mark.parametrize(
    ("layout", "inputs"), [("zlab", (0, 3, 8)), ("speculators", (0, 3, 8)), ("deepspec", (0, 8))]
)
def test_the_ends(tmp_path: Path, layout: str, inputs: tuple[int, ...]) -> None:
    """Output -1 is the embedding's output, output n - 1 the last block's."""
    kind = "dspark" if layout == "deepspec" else "dflash"
    report = convert_written(tmp_path, layout, make_draft(kind, inputs=inputs))
    assert report.target_layers == inputs
    assert "before the final norm" in report.notes[-1]


@pytest.mark.parametrize(
    ("layout", "more", "message"),
    [
        ("zlab", {"target_layer_ids": [1, 4, 5]}, r"dflash_config.target_layer_ids is \[1, 4, 6\]"),
        ("zlab", {"aux_hidden_state_layer_ids": [1, 4, 6]}, "do not name the same layers"),
        ("flat", {"target_layer_ids": [1, 4]}, r"names 2 layers .*fc.weight reads 3"),
        ("flat", {"target_layer_ids": [1, 4, 8]}, r"8 of .* as outputs, is outside -1 \.\. 7"),
        ("flat", {"target_layer_ids": [1, 4, 4]}, "name a layer twice"),
        ("speculators", {"aux_hidden_state_layer_ids": [1, 4, 9]}, r"outside 0 \.\. 8"),
        ("speculators", {"aux_hidden_state_layer_ids": None}, "names no layers of the target"),
        ("speculators", {"target_layer_ids": [2, 5, 7]}, "do not name the same layers"),
    ],
)
def test_ids_are_refused(tmp_path: Path, layout: str, more: dict[str, Any], message: str) -> None:
    draft = make_draft()
    draft.more = more
    with pytest.raises(ConversionError, match=message):
        convert_written(tmp_path, layout, draft)


def test_both_lists_may_say_the_same(tmp_path: Path) -> None:
    draft = make_draft()
    draft.more = {"target_layer_ids": [1, 4, 6]}
    assert convert_written(tmp_path, "speculators", draft).target_layers == (2, 5, 7)
