"""Layer ids: their keys, how they count, and ambiguous lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pyllama_spec.convert import Convention
from pyllama_spec.convert.layer_ids import resolve
from pyllama_spec.errors import ConversionError
from tests.convert.dflash_tools import DSPARK_LAYOUTS, LAYOUTS, convert_written, make_draft
from tests.convert.tools import convert_head, gguf_keys, make_head

Ids = tuple[int, ...]


@pytest.mark.parametrize(
    ("flat", "nested", "n_layer", "expected", "counted"),
    [
        # Nothing: the reference's default.
        (None, None, 32, (2, 16, 29), "default"),
        ((), (), 36, (2, 18, 33), "default"),
        (None, (1, 46, 90), 94, (2, 47, 91), "output"),
        (None, (0,), 36, (1,), "output"),
        (None, (35,), 36, (36,), "output"),
        # nvidia/gpt-oss-120b-Eagle3-v3: an id that is not a block.
        (None, (24, 30, 36), 36, (24, 30, 36), "input"),
        ((24, 30, 36), (24, 30, 36), 36, (24, 30, 36), "input"),
        # speculators and flat files, as inputs.
        ((2, 18, 33), None, 36, (2, 18, 33), "input"),
        ((33, 2, 18), None, 36, (33, 2, 18), "input"),
        ((2, 18, 33), (1, 17, 32), 36, (2, 18, 33), "input"),
    ],
)
def test_ids_are_read(
    flat: Ids | None, nested: Ids | None, n_layer: int, expected: Ids, counted: str
) -> None:
    resolved = resolve(flat, nested, n_layer, len(expected), None)
    assert (resolved.target_layers, resolved.counted) == (expected, counted)


@pytest.mark.parametrize(
    ("flat", "nested", "override", "expected"),
    [
        (None, (1, 46, 90), "input", (1, 46, 90)),
        (None, (1, 46, 90), "output", (2, 47, 91)),
        (None, (2, 47, 91), "output", (3, 48, 92)),
        ((1, 46, 90), None, "output", (2, 47, 91)),
        ((2, 47, 91), (1, 46, 90), "output", (2, 47, 91)),
        ((2, 47, 91), (9, 10, 11), "input", (2, 47, 91)),
    ],
)
def test_the_caller_decides(
    flat: Ids | None, nested: Ids | None, override: Convention, expected: Ids
) -> None:
    assert resolve(flat, nested, 94, 3, override).target_layers == expected


@pytest.mark.parametrize(
    ("flat", "nested", "n_layer", "message"),
    [
        # The default of the other way of counting: both occur.
        (None, (2, 47, 91), 94, "--layer-ids input .* or --layer-ids output"),
        ((1, 46, 90), None, 94, "--layer-ids input .* or --layer-ids output"),
        ((1, 46, 90), (1, 46, 90), 94, "do not name the same layers"),
        ((2, 18, 37), None, 36, "layer id 37 .* counted as inputs, is outside 0 .. 36"),
        (None, (1, 17, 37), 36, "layer id 37 .* counted as outputs, is outside 0 .. 35"),
        ((-1, 2, 3), None, 36, "layer id -1"),
        ((2, 2, 3), None, 36, "name a layer twice"),
        (None, None, 4, r"default 2, n/2, n-3 is \[2, 2, 1\]"),
    ],
)
def test_ids_are_refused(flat: Ids | None, nested: Ids | None, n_layer: int, message: str) -> None:
    with pytest.raises(ConversionError, match=message):
        resolve(flat, nested, n_layer, 3, None)


@pytest.mark.parametrize("shift", [-1, 0, 1])
@pytest.mark.parametrize("layout", ["specforge", "nvidia", "speculators", "flat"])
def test_one_off_is_one_off(tmp_path: Path, layout: str, shift: int) -> None:
    """The file gets the intended ids in each layout."""
    inputs = tuple(k + shift for k in (2, 5, 7))
    head = make_head(target_layers=inputs)
    report = convert_head(tmp_path, layout, head)
    assert report.target_layers == inputs
    assert gguf_keys(report.path)["eagle3.target_layers"] == list(inputs)


# ---- layer ids of DFlash drafts: the list's name decides what they count


CASES = [
    *(("dflash", layout) for layout in LAYOUTS),
    *(("dspark", layout) for layout in DSPARK_LAYOUTS),
    ("dflash2", "zlab"),
]


@pytest.mark.parametrize(("kind", "layout"), CASES)
def test_the_caller_decides_of_blocks(tmp_path: Path, kind: str, layout: str) -> None:
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
def test_ids_of_blocks_are_refused(
    tmp_path: Path, layout: str, more: dict[str, Any], message: str
) -> None:
    draft = make_draft()
    draft.more = more
    with pytest.raises(ConversionError, match=message):
        convert_written(tmp_path, layout, draft)
