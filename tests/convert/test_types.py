"""The types of weights, and the written file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader
from gguf.quants import dequantize

from pyllama_spec.convert import Kind
from pyllama_spec.errors import ConversionError
from tests.convert.tools import (
    convert,
    convert_head,
    gguf_keys,
    gguf_tensors,
    make_head,
    write_head,
    write_safetensors,
    write_target,
)

FILE_TYPES = {"f32": 0, "f16": 1, "q8_0": 7, "bf16": 32}


def weights(path: Path) -> dict[str, Any]:
    """Every tensor of floats, as float32."""
    return {
        t.name: dequantize(t.data, t.tensor_type).reshape(t.shape[::-1])
        for t in GGUFReader(path).tensors
        if t.name != "d2t"
    }


@pytest.mark.parametrize(
    ("kind", "tolerance"), [("f32", 0.0), ("f16", 5e-4), ("bf16", 0.0), ("q8_0", 5e-3)]
)
def test_types(tmp_path: Path, kind: Kind, tolerance: float) -> None:
    """The file holds the checkpoint's BF16 numbers, within the type's precision for each row."""
    head = make_head(norm_before_fc=True, qk_norm=True, attn_bias=True)
    report = convert_head(tmp_path, "speculators", head, kind=kind)
    assert report.type_name == kind.upper()
    keys = gguf_keys(report.path)
    assert keys["general.file_type"] == FILE_TYPES[kind]
    assert ("general.quantization_version" in keys) == (kind == "q8_0")
    values = weights(report.path)
    assert set(values) == set(head.gguf) - {"d2t"}
    for name, (type_name, _, _) in gguf_tensors(report.path).items():
        if name == "d2t":
            continue
        expected = head.gguf[name]
        assert type_name == (kind.upper() if expected.ndim == 2 else "F32")
        limit = (tolerance if expected.ndim == 2 else 0.0) * np.abs(expected).max()
        assert np.abs(values[name] - expected).max() <= limit, name


@pytest.mark.slow
@pytest.mark.parametrize(("floats", "name"), [("BF16", "BF16"), ("F16", "F16"), ("F32", "F32")])
def test_the_sources_type_is_kept(tmp_path: Path, floats: str, name: str) -> None:
    head = make_head()
    folder = write_head(tmp_path / "draft", "safeailab", head)
    (folder / "model.safetensors").unlink()
    tensors = {k.replace("layers.0.", "midlayer."): v for k, v in head.tensors.items()}
    write_safetensors(folder / "model.safetensors", tensors, floats)
    report = convert(folder)
    assert report.type_name == name
    kinds = {kind for kind, shape, _ in gguf_tensors(report.path).values() if len(shape) == 2}
    assert kinds == {name}
    exact = floats != "F16"
    for key, array in weights(report.path).items():
        assert array == pytest.approx(head.gguf[key], abs=0 if exact else 1e-2, rel=0)


def test_rows_that_q8_0_cannot_hold(tmp_path: Path) -> None:
    head = make_head(n_ff=40)
    report = convert_head(tmp_path, "specforge", head, kind="q8_0")
    assert gguf_tensors(report.path)["blk.0.ffn_down.weight"][0] == "F16"
    assert gguf_tensors(report.path)["blk.0.ffn_up.weight"][0] == "Q8_0"
    assert report.notes == (
        "blk.0.ffn_down.weight: F16, since the length of their rows is not a multiple of 32",
    )


def test_numbers_too_large_for_f16(tmp_path: Path) -> None:
    head = make_head()
    head.tensors["fc.weight"] = head.tensors["fc.weight"] * np.float32(2**18)
    with pytest.raises(ConversionError, match=r"fc\.weight .* F16 cannot hold; use bf16"):
        convert_head(tmp_path, "specforge", head, kind="f16")
    convert_head(tmp_path, "specforge", head, kind="bf16")


def test_pieces_of_a_large_matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A matrix converted in pieces equals one converted at once."""
    head = make_head(n_draft_vocab=None)
    folder = write_head(tmp_path / "draft", "specforge", head)
    target = write_target(tmp_path / "small.gguf", n_vocab=312)
    for kind in ("q8_0", "bf16", "f16"):
        whole = gguf_tensors(convert(folder, target=target, kind=kind).path)
        with monkeypatch.context() as patch:
            patch.setattr("pyllama_spec.gguf.writer._PIECE_BYTES", 1000)
            assert gguf_tensors(convert(folder, target=target, kind=kind).path) == whole
