"""The engine finds every tensor that it needs in converted DFlash files, and no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pyllama_spec.engine import Model
from tests.convert.dflash_tools import convert_written, make_draft

DRAFTS: list[tuple[str, str, dict[str, Any]]] = [
    ("dflash", "zlab", {}),
    ("dflash", "muse", {"sinks": True}),
    ("dspark", "deepspec", {"own": ("token_embd", "output")}),
    ("dspark", "speculators", {"reduced": True}),
    ("dflash2", "zlab", {"n_layer": 3}),
]


@pytest.mark.parametrize("type_", [None, "q8_0"])
@pytest.mark.parametrize(("kind", "layout", "options"), DRAFTS)
def test_files_load(
    tmp_path: Path, kind: str, layout: str, options: dict[str, Any], type_: Any
) -> None:
    report = convert_written(tmp_path, layout, make_draft(kind, **options), kind=type_)
    with Model(report.path) as model:
        assert model.metadata["general.architecture"] == "dflash"
        assert model.metadata["dflash.block_size"] == "7"


def test_windows_and_factors_load(tmp_path: Path) -> None:
    draft = make_draft()
    draft.config |= {
        "layer_types": ["sliding_attention", "full_attention"], "use_sliding_window": True,
        "sliding_window": 64, "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 2048,
        },
    }  # fmt: skip
    with Model(convert_written(tmp_path, "zlab", draft).path) as model:
        assert model.metadata["dflash.attention.sliding_window"] == "64"
