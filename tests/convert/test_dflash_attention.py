"""Windows and causality of DFlash drafts, per layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pyllama_spec.errors import ConversionError
from tests.convert.dflash_tools import DflashDraft, convert_written, make_draft
from tests.convert.tools import Json, gguf_keys

SLIDING, FULL = "sliding_attention", "full_attention"
WINDOW = {"use_sliding_window": True, "sliding_window": 2048}


def draft_with(**config: Any) -> DflashDraft:
    """A draft with further keys beside its sizes, and with some of dflash_config."""
    draft = make_draft()
    inner = config.pop("inner", {})
    draft.config |= config
    draft.config["dflash_config"] |= inner
    return draft


def masks(tmp_path: Path, draft: DflashDraft, layout: str = "zlab") -> Json:
    """The keys of its masks, and the notes."""
    report = convert_written(tmp_path, layout, draft)
    keys = gguf_keys(report.path)
    names = ("causal", "causal_pattern", "sliding_window", "sliding_window_pattern")
    by_name = {name: keys.get(f"dflash.attention.{name}") for name in names}
    return by_name | {"notes": report.notes}


MIXED = {"layer_types": [SLIDING, FULL], **WINDOW}
ALL_SLIDING = {"layer_types": [SLIDING, SLIDING], **WINDOW}


@pytest.mark.parametrize(
    ("config", "window", "sliding", "causal", "pattern"),
    [
        ({}, None, None, False, None),
        (MIXED, 2048, [True, False], False, [True, False]),
        (ALL_SLIDING, 2048, [True, True], True, None),
        (MIXED | {"is_causal": False}, 2048, [True, False], False, None),
        (MIXED | {"is_causal": True}, 2048, [True, False], True, None),
        ({"is_causal": True}, None, None, True, None),
        # MiMo: a switch for all layers.
        (
            {"inner": {"use_swa": True, "swa_window_size": 1024}, "sliding_window": 1024},
            1024, [True, True], False, None,
        ),
        (MIXED | {"inner": {"use_swa": True}}, 2048, [True, False], False, [True, False]),
    ],
)  # fmt: skip
def test_masks(
    tmp_path: Path, config: Json, window: int | None, sliding: Any, causal: bool, pattern: Any
) -> None:
    mask_keys = masks(tmp_path, draft_with(**config))
    notes = mask_keys.pop("notes")
    assert mask_keys == {
        "sliding_window": window, "sliding_window_pattern": sliding, "causal": causal,
        "causal_pattern": pattern,
    }  # fmt: skip
    said = [note for note in notes if "1 of 2 layers are causal within a block" in note]
    assert len(said) == (pattern is not None)


def test_masks_of_speculators(tmp_path: Path) -> None:
    draft = draft_with(**MIXED)
    assert masks(tmp_path, draft, "speculators")["causal_pattern"] == [True, False]
    draft.more = {"sliding_window_non_causal": True}
    mask_keys = masks(tmp_path, draft, "speculators")
    assert (mask_keys["causal"], mask_keys["causal_pattern"]) == (False, None)
    # Older files have these keys at the top, and null beside the sizes.
    older = draft_with()
    older.more = {"layer_types": [FULL, SLIDING], **WINDOW}
    older.config |= {"layer_types": None, "use_sliding_window": None}
    assert masks(tmp_path, older, "redhat")["sliding_window_pattern"] == [False, True]


def test_muse_needs_no_switch(tmp_path: Path) -> None:
    draft = draft_with(layer_types=[SLIDING, FULL], sliding_window=64, use_sliding_window=None)
    draft.config["is_causal"] = False
    assert masks(tmp_path, draft, "muse")["sliding_window"] == 64
    with pytest.raises(ConversionError, match="use_sliding_window is None"):
        masks(tmp_path, draft, "zlab")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (MIXED | {"sliding_window": None}, "no .*sliding_window"),
        (MIXED | {"use_sliding_window": False}, "use_sliding_window is False: layer_types has"),
        (MIXED | {"layer_types": [SLIDING]}, "layer_types is .*not a list of 2 kinds"),
        (MIXED | {"layer_types": [SLIDING, "chunked_attention"]}, "'chunked_attention'"),
        (MIXED | {"is_causal": False, "inner": {"causal": True}}, "is_causal is False: causal is"),
    ],
)
def test_masks_are_refused(tmp_path: Path, config: Json, message: str) -> None:
    with pytest.raises(ConversionError, match=message):
        masks(tmp_path, draft_with(**config))
