"""Refused DFlash drafts: the message names the key or the tensor."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from pyllama_spec.errors import ConversionError
from tests.convert.dflash_tools import (
    N_EMBD,
    N_VOCAB,
    RANK,
    DflashDraft,
    convert,
    convert_written,
    make_draft,
    write_draft,
)
from tests.convert.tools import make_head, write_head, write_target


def refused(tmp_path: Path, draft: DflashDraft, message: str, layout: str = "zlab") -> None:
    """The conversion ends with the message, and leaves no file."""
    with pytest.raises(ConversionError, match=message):
        convert_written(tmp_path, layout, draft)
    assert not (tmp_path / "out.gguf").exists()


@pytest.mark.parametrize("value", [None, "16", 0, -1, True, 257, 1])
@pytest.mark.parametrize("layout", ["zlab", "zlab_newer", "deepspec", "speculators"])
def test_there_is_no_default_block(tmp_path: Path, layout: str, value: object) -> None:
    draft = make_draft("dspark" if layout == "deepspec" else "dflash")
    draft.config["block_size"] = value
    if layout == "deepspec" and value == 1 and value is not True:
        assert convert_written(tmp_path, layout, draft).block_size == 1
        return
    refused(tmp_path, draft, "config.json.*block_size", layout)


@pytest.mark.parametrize("value", [None, "<mask>", -1, True, 1.5, N_VOCAB])
@pytest.mark.parametrize("layout", ["zlab", "flat", "speculators"])
def test_there_is_no_default_mask(tmp_path: Path, layout: str, value: object) -> None:
    draft = make_draft()
    draft.config["dflash_config"]["mask_token_id"] = value
    refused(tmp_path, draft, "config.json.*mask_token_id", layout)


REFUSED: list[tuple[str, str, dict[str, Any], str]] = [
    ("dflash", "zlab", {"attention_bias": True}, r"self_attn\.q_proj\.bias"),
    ("dflash", "zlab", {"hidden_act": "gelu"}, "hidden_act"),
    ("dflash", "zlab", {"rope_theta": 10**400}, "not a positive number that float32 holds"),
    ("dflash", "zlab", {"num_target_layers": 36}, "num_target_layers"),
    ("dflash", "zlab", {"block_size": 16, "dflash_config": {"block_size": 8}}, "block_size is 8"),
    ("dflash", "zlab", {"is_neox_style": False}, "is_neox_style"),
    ("dflash", "zlab", {"quantization_config": {"bits": 4}}, "quantization_config"),
    ("dflash", "zlab", {"fc_layernorm": True}, "fc_layernorm"),
    ("dflash", "zlab", {"rope_scaling": {
        "rope_type": "yarn", "factor": 64.0, "original_max_position_embeddings": 4096,
        "mscale": 1.0, "mscale_all_dim": 1.0}}, r"rope_scaling\.mscale"),
    ("dflash", "speculators", {"target_hidden_size": 64}, "width 64"),
    ("dflash", "speculators", {"aux_hidden_state_layer_offset": 1}, "hidden_state_layer_offset"),
    ("dflash", "zlab", {"dflash_config": {"future_mode": "silent"}}, "future_mode"),
    ("dflash", "zlab", {"dflash_config": {"markov_rank": 4}}, r"markov_head\.markov_w1\.weight"),
    ("dspark", "zlab", {"dflash_config": {"markov_rank": None}}, "markov_rank"),
    ("dspark", "zlab", {"dflash_config": {"markov_rank": RANK + 1}}, r"markov_w1\.weight"),
    ("dspark", "zlab", {"dflash_config": {"enable_confidence_head": False}}, "confidence_head"),
    ("dspark", "speculators", {"sample_from_anchor": None}, "sample_from_anchor"),
    ("dflash2", "zlab", {"dflash_config": {"selector_top_k": 16}}, "selector_top_k"),
    ("dflash2", "zlab", {"dflash_config": {"conv_kernel_size": 3}}, "base_kernel"),
    ("dflash2", "zlab", {"dflash_config": {"selector_vocab_size": 300}}, "selector_vocab_size"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "layout", "more", "named"), REFUSED)
def test_keys_are_refused(
    tmp_path: Path, kind: str, layout: str, more: dict[str, Any], named: str
) -> None:
    draft = make_draft(kind)
    inner = more.get("dflash_config", {})
    draft.config["dflash_config"] |= inner
    draft.more = {key: value for key, value in more.items() if key != "dflash_config"}
    refused(tmp_path, draft, named, layout)


ODD: tuple[object, ...] = (0, -1, True, 1.5, "x", [], [1], [[1]], {"a": 1}, 10**30)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "layout"), [("dspark", "specforge"), ("dspark", "speculators")])
def test_odd_values_are_no_crash(tmp_path: Path, kind: str, layout: str) -> None:
    """An odd value at any key is converted or refused."""
    base = json.loads(
        (write_draft(tmp_path / "d", layout, make_draft(kind)) / "config.json").read_text()
    )
    target = write_target(tmp_path / "target.gguf", embedding_length=N_EMBD)
    for key in base:
        for value in ODD:
            (tmp_path / "d" / "config.json").write_text(json.dumps({**base, key: value}))
            with contextlib.suppress(ConversionError):
                convert(tmp_path / "d", target=target)


def test_kinds_are_recognised_by_content(tmp_path: Path) -> None:
    """The kind is recognised without a name, an option or a model type."""
    draft = make_draft()
    for key in ("architectures", "auto_map", "model_type"):
        del draft.config[key]
    assert convert_written(tmp_path, "zlab", draft).draft == "DFlash"
    eagle = write_head(tmp_path / "eagle", "speculators", make_head())
    target = write_target(tmp_path / "t.gguf")
    assert convert(eagle, target=target).draft == "EAGLE-3"
