"""An EAGLE-3 head written for other engines is the same one when it is converted back."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from pyllama_spec.convert import LAYOUTS, convert_draft, publish_eagle3
from pyllama_spec.errors import ArgumentError, ConversionError
from pyllama_spec.gguf.reader import read_gguf
from pyllama_spec.gguf.values import read_floats, read_ids
from tests.convert.tools import N_DRAFT, make_head, write_head, write_target
from tests.models import model_path


def check_same(draft: Path, again: Path) -> None:
    """Compares the numbers and the keys of two heads; the n-gram table is not written."""
    one, other = (
        read_gguf(path, lambda name: name.startswith("eagle3.")) for path in (draft, again)
    )
    names = {name for name in one.tensors if not name.startswith("ngram.")}
    assert names == other.tensors.keys()
    for name in names:
        read = read_ids if name == "d2t" else read_floats
        a, b = read(draft, one.tensors[name]), read(again, other.tensors[name])
        assert np.array_equal(a, b), name
    assert {name: key.value for name, key in one.keys.items()} == {
        name: key.value for name, key in other.keys.items()
    }


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "q8_0"])
@pytest.mark.parametrize("is_plain", [True, False])
def test_a_head_comes_back(layout: str, kind: str, is_plain: bool, tmp_path: Path) -> None:
    options = {} if is_plain else {"fc_norm": True, "norm_output": True, "target_layers": (1, 4)}
    target = write_target(tmp_path / "target.gguf")
    source = write_head(tmp_path / "hf", "speculators", make_head(**options))
    convert_draft(source, target, tmp_path / "draft.gguf", kind=kind)  # type: ignore[arg-type]
    notes = publish_eagle3(tmp_path / "draft.gguf", tmp_path / "out", layout)
    assert bool(notes) != is_plain
    convert_draft(tmp_path / "out", target, tmp_path / "again.gguf")
    check_same(tmp_path / "draft.gguf", tmp_path / "again.gguf")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["draft_vocab_size"] == N_DRAFT


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "config.json").touch()
    head = model_path("eagle3")
    with pytest.raises(ArgumentError):
        publish_eagle3(head, tmp_path / "full", "eagle3")
    with pytest.raises(ArgumentError):
        publish_eagle3(head, tmp_path / "a", "gguf")
    for other in (model_path("llama"), model_path("dflash")):
        with pytest.raises(ConversionError, match="no EAGLE-3 head"):
            publish_eagle3(other, tmp_path / "a", "eagle3")
    assert not (tmp_path / "a").exists()
