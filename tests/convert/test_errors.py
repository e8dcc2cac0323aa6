"""The error of a faulty checkpoint names the fault, and no file is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyllama_spec.convert import convert_draft
from pyllama_spec.errors import ArgumentError, ConversionError
from tests.convert.tools import (
    N_DRAFT,
    Head,
    convert_head,
    make_head,
    write_head,
    write_target,
)

SOME = make_head()
Q = "layers.0.self_attn.q_proj.weight"


def refused(tmp_path: Path, head: Head, message: str, layout: str = "specforge") -> None:
    """Converting raises this, in one sentence, and leaves no file."""
    with pytest.raises(ConversionError, match=message):
        convert_head(tmp_path, layout, head)
    assert not list(tmp_path.glob("out.gguf*"))


NEEDED = sorted(SOME.tensors.keys() - {"t2d", "d2t", "embed_tokens.weight"})


@pytest.mark.parametrize("name", NEEDED)
def test_missing_tensor(tmp_path: Path, name: str) -> None:
    head = make_head()
    del head.tensors[name]
    stem = name.rpartition("layers.0.")[2]
    # hidden_norm and fc are what makes a head, and have messages of their own.
    refused(tmp_path, head, "hidden_norm" if "hidden_norm" in stem else stem)


@pytest.mark.parametrize("name", [*NEEDED, "embed_tokens.weight"])
@pytest.mark.parametrize("axis", [0, -1])
def test_wrong_shape(tmp_path: Path, name: str, axis: int) -> None:
    head = make_head()
    array = head.tensors[name]
    head.tensors[name] = np.concatenate([array, array.take([0], axis)], axis)
    stem = name.rpartition("layers.0.")[2].removesuffix(".weight").split(".")[-1]
    refused(tmp_path, head, stem)


Change = Callable[[Head], Any]
UP = "layers.0.mlp.up_proj.weight"
PLACES: list[tuple[str, dict[str, Any], Change, str]] = [
    ("nvidia", {}, lambda h: h.tensors.update({UP.replace("layers.0", "midlayer"): h.tensors[UP]}),
     "by different names"),
    ("speculators", {"n_layer": 2}, lambda h: h.config.update(num_hidden_layers=1),
     "num_hidden_layers"),
    ("speculators", {}, lambda h: h.config.update(num_hidden_layers=2), "num_hidden_layers"),
    ("speculators", {}, lambda h: h.config.update(norm_before_residual=None),
     "norm_before_residual"),
    ("safeailab", {"norm_before_fc": True},
     lambda h: h.config.update(eagle_config={"norm_before_fc": False}), "norm_before_fc"),
    ("specforge", {}, lambda h: h.tensors.update(d2t=h.tensors["d2t"].astype(np.float32)), "d2t"),
    ("specforge", {}, lambda h: h.tensors.update({"norm.weight": np.ones(64, np.int64)}),
     "norm.weight"),
    ("speculators", {"qk_norm": True}, lambda h: [
        h.tensors.pop(f"layers.0.self_attn.{one}_norm.weight") for one in "qk"], "q_norm"),
    ("safeailab", {}, lambda h: h.config.update(num_key_value_heads=3),
     "num_key_value_heads is 3, not a divisor"),
    ("safeailab", {}, lambda h: h.config.update(head_dim=15), "even"),
    ("safeailab", {}, lambda h: h.config.update(eagle_config=[1]), r"eagle_config is \[1\]"),
    ("flat", {}, lambda h: h.config.update(eagle_aux_hidden_state_layer_ids=[1, 2.5, 3]),
     "not a list of integers"),
    ("specforge", {}, lambda h: h.config.update(eagle_aux_hidden_state_layer_ids=[1, 3]),
     r"names 2 layers of the target \(\[1, 3\]\), and fc.weight reads 3"),
    ("safeailab", {"target_layers": (2, 4)}, lambda h: None, "fc reads 2 layers of the target"),
]  # fmt: skip


@pytest.mark.parametrize(("layout", "options", "change", "name"), PLACES)
def test_layouts_disagree_with_themselves(
    tmp_path: Path, layout: str, options: dict[str, Any], change: Change, name: str
) -> None:
    head = make_head(**options)
    change(head)
    refused(tmp_path, head, name, layout)


FLAGS: list[tuple[dict[str, Any], Change, str]] = [
    ({"norm_before_fc": True}, lambda h: h.config.pop("norm_before_fc"), "input_norm"),
    ({}, lambda h: h.config.update(norm_before_fc=True), r"input_norm\.weight \[192\] is missing"),
    ({"fc_norm": True}, lambda h: h.tensors.pop("fc_norm.2.weight"), r"fc_norm\.2\.weight \[64\]"),
    ({"fc_norm": True}, lambda h: h.config.update(norm_before_fc=True), "both true"),
    ({}, lambda h: h.config.update(attention_bias=True), r"q_proj\.bias \[64\] is missing"),
    ({"attn_bias": True}, lambda h: h.config.update(attention_bias=False), r"q_proj\.bias"),
    ({}, lambda h: h.config.update(attn_output_gate=True), r"q_proj.* not \[128, 128\]"),
    ({"qk_norm": True}, lambda h: h.tensors.pop("layers.0.self_attn.k_norm.weight"), "k_norm"),
    ({}, lambda h: h.config.update(num_aux_hidden_states=4), "num_aux_hidden_states 4, .* 3 rows"),
    ({}, lambda h: h.config.update(draft_vocab_size=N_DRAFT + 1), r"d2t has the shape \[96\], not"),
    ({"own_embedding": False, "n_embd": 32}, lambda h: None, "embed_tokens.*missing.*32 wide"),
    ({"own_output": False}, lambda h: None, "lm_head.weight .*is missing: .*vocabulary of its own"),
    (
        {"n_draft_vocab": None, "own_output": False, "own_embedding": False},
        lambda h: h.config.update(tie_word_embeddings=True),
        "lm_head.weight .*is missing: .*embed_tokens.weight",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("options", "change", "message"), FLAGS)
def test_options_and_tensors_disagree(
    tmp_path: Path, options: dict[str, Any], change: Change, message: str
) -> None:
    head = make_head(**options)
    change(head)
    refused(tmp_path, head, message)


SIZES = (
    "hidden_size", "intermediate_size", "max_position_embeddings", "num_attention_heads",
    "num_hidden_layers", "rms_norm_eps", "vocab_size",
)  # fmt: skip


@pytest.mark.parametrize("layout", ["specforge", "speculators"])
@pytest.mark.parametrize("value", [None, "64", -1, True])
@pytest.mark.parametrize("key", SIZES)
def test_sizes_are_never_guessed(tmp_path: Path, key: str, value: object, layout: str) -> None:
    head = make_head()
    head.config[key] = value
    where = r"transformer_layer_config\." if layout == "speculators" else ""
    refused(tmp_path, head, rf"config.json.* {where}{key}", layout)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["fc.weight", "norm.weight", Q])
def test_numbers_are_finite(tmp_path: Path, name: str, value: float) -> None:
    head = make_head()
    head.tensors[name] = head.tensors[name].copy()
    head.tensors[name].flat[-1] = value
    refused(tmp_path, head, f"{name.rpartition('layers.0.')[2]}.* not finite")


def test_output_is_an_input_or_nowhere(tmp_path: Path) -> None:
    folder = write_head(tmp_path / "draft", "specforge", make_head())
    target = write_target(tmp_path / "target.gguf")
    for out, message in (
        (target, "is the target itself"),
        (tmp_path, "is a folder"),
        (tmp_path / "none" / "out.gguf", "none does not exist"),
        (folder / "model.safetensors", "is a file of the draft"),
    ):
        with pytest.raises(ArgumentError, match=message):
            convert_draft(folder, target, out)
