"""The same DFlash draft in every layout becomes the same GGUF with the draft's numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.convert.dflash_tools import (
    BLOCK,
    DSPARK_LAYOUTS,
    HEAD,
    INPUTS,
    LAYOUTS,
    MASK,
    N_DRAFT,
    N_HEAD,
    N_HEAD_KV,
    SELECTOR,
    convert,
    convert_written,
    make_draft,
    write_draft,
)
from tests.convert.tools import (
    as_bf16,
    check_equal,
    gguf_keys,
    gguf_tensors,
    stored,
    write_target,
)

DFLASH2_LAYOUTS = ("zlab", "zlab_newer", "prefixed", "flat")
ALL = [
    *(("dflash", layout) for layout in LAYOUTS),
    *(("dspark", layout) for layout in DSPARK_LAYOUTS),
    *(("dflash2", layout) for layout in DFLASH2_LAYOUTS),
]
OWN = ("token_embd", "output")


@pytest.mark.parametrize("own", [(), ("output",), OWN], ids=str)
@pytest.mark.parametrize(("kind", "layout"), ALL)
def test_layouts_are_tensor_equal(
    tmp_path: Path, kind: str, layout: str, own: tuple[str, ...]
) -> None:
    draft = make_draft(kind, own=own)
    report = convert_written(tmp_path, layout, draft)
    check_equal(report.path, draft.gguf)
    assert report.target_layers == INPUTS
    assert report.draft == {"dflash": "DFlash", "dspark": "DSpark", "dflash2": "DFlash2"}[kind]
    assert (report.n_layer, report.n_tensors) == (2, len(draft.gguf))
    assert (report.type_name, report.n_draft_vocab, report.block_size) == ("BF16", None, BLOCK)
    assert gguf_keys(report.path)["dflash.target_layers"] == list(INPUTS)


@pytest.mark.parametrize("kind", ["dflash", "dspark"])
@pytest.mark.parametrize("layout", ["speculators", "redhat"])
def test_reduced_vocabulary(tmp_path: Path, kind: str, layout: str) -> None:
    """Offsets in d2t become target ids; t2d is only compared with them."""
    draft = make_draft(kind, reduced=True)
    report = convert_written(tmp_path, layout, draft)
    check_equal(report.path, draft.gguf)
    assert report.n_draft_vocab == N_DRAFT
    rows = {name: shape[0] for name, (_, shape, _) in gguf_tensors(report.path).items()}
    assert rows["output.weight"] == rows["d2t"] == N_DRAFT
    if kind == "dspark":
        assert (rows["markov_w1.weight"], rows["markov_w2.weight"]) == (320, N_DRAFT)


def test_keys(tmp_path: Path) -> None:
    keys = gguf_keys(convert_written(tmp_path, "zlab", make_draft()).path)
    own = {name: value for name, value in keys.items() if name.startswith("dflash.")}
    assert own.pop("dflash.attention.layer_norm_rms_epsilon") == pytest.approx(1e-6)
    assert own == {
        "dflash.context_length": 4096, "dflash.embedding_length": 32, "dflash.block_count": 2,
        "dflash.feed_forward_length": 48, "dflash.attention.head_count": N_HEAD,
        "dflash.attention.head_count_kv": N_HEAD_KV, "dflash.attention.key_length": HEAD,
        "dflash.attention.value_length": HEAD, "dflash.rope.dimension_count": HEAD,
        "dflash.rope.freq_base": 1e6, "dflash.block_size": BLOCK,
        "dflash.attention.causal": False, "dflash.target_layers": list(INPUTS),
    }  # fmt: skip
    assert keys["general.architecture"] == "dflash"
    assert keys["tokenizer.ggml.mask_token_id"] == MASK
    assert len(keys["tokenizer.ggml.tokens"]) == 320
    assert str(tmp_path) not in str(keys)


def test_keys_of_the_heads(tmp_path: Path) -> None:
    keys = gguf_keys(convert_written(tmp_path, "zlab", make_draft("dflash2")).path)
    assert {name: keys[f"dflash.{name}"] for name in SELECTOR} == SELECTOR
    assert "dflash.sample_from_anchor" not in keys
    for layout in DSPARK_LAYOUTS:
        keys = gguf_keys(convert_written(tmp_path, layout, make_draft("dspark")).path)
        assert keys["dflash.sample_from_anchor"] is True, layout
        assert keys["dflash.has_confidence_head"] is True, layout


@pytest.mark.parametrize("layout", DSPARK_LAYOUTS)
@pytest.mark.parametrize("anchor", [True, False])
def test_the_anchor_is_what_the_file_says(tmp_path: Path, layout: str, anchor: bool) -> None:
    draft = make_draft("dspark")
    draft.more = {"sample_from_anchor": anchor}
    keys = gguf_keys(convert_written(tmp_path, layout, draft).path)
    assert keys["dflash.sample_from_anchor"] is anchor


def test_a_markov_head_without_confidence(tmp_path: Path) -> None:
    draft = make_draft("dspark")
    for name in ("weight", "bias"):
        del draft.tensors[f"confidence_head.proj.{name}"], draft.gguf[f"conf_proj.{name}"]
    report = convert_written(tmp_path, "specforge", draft)
    check_equal(report.path, draft.gguf)
    assert gguf_keys(report.path)["dflash.has_confidence_head"] is False
    assert "enable_confidence_head is true, and the file has no" in report.notes[0]


def test_kernels_are_f32_whatever_the_type(tmp_path: Path) -> None:
    """Convolution kernels are F32, the only type that the engine supports there."""
    draft = make_draft("dflash2")
    tensors = gguf_tensors(convert_written(tmp_path, "zlab", draft, kind="q8_0").path)
    assert tensors["blk.1.attn_conv_base"][0] == tensors["blk.0.ffn_conv_base"][0] == "F32"
    assert tensors["blk.0.attn_conv_proj.weight"][0] == tensors["fc.weight"][0] == "Q8_0"


def test_sinks(tmp_path: Path) -> None:
    draft = make_draft(sinks=True)
    check_equal(convert_written(tmp_path, "zlab", draft).path, draft.gguf)
    renamed = make_draft(sinks=True)
    for index in range(2):
        name = f"layers.{index}.self_attn."
        renamed.tensors[f"{name}sinks"] = renamed.tensors.pop(f"{name}attention_sink_bias")
    check_equal(convert_written(tmp_path, "flat", renamed).path, draft.gguf)


def test_padding_is_cut(tmp_path: Path) -> None:
    """Rows beyond the tokens of the target's GGUF are dropped."""
    draft = make_draft("dspark", own=OWN)
    folder = write_draft(tmp_path / "deepspec", "deepspec", draft)
    target = write_target(tmp_path / "small.gguf", embedding_length=32, n_vocab=312)
    report = convert(folder, target=target)
    rows = {name: shape[0] for name, (_, shape, _) in gguf_tensors(report.path).items()}
    tables = ("token_embd", "output", "markov_w1", "markov_w2")
    assert [rows[f"{name}.weight"] for name in tables] == [312] * 4
    first = stored(draft.gguf["markov_w1.weight"][:312])[1]
    assert gguf_tensors(report.path)["markov_w1.weight"][2] == first


def test_biases_of_attention(tmp_path: Path) -> None:
    """As z-lab/gpt-oss-20b-DFlash has them."""
    draft = make_draft()
    draft.config["attention_bias"] = True
    for i in range(2):
        for part, name in (("q", "q"), ("k", "k"), ("v", "v"), ("o", "output")):
            n_rows = len(draft.gguf[f"blk.{i}.attn_{name}.weight"])
            bias = as_bf16(np.random.default_rng(i).standard_normal(n_rows))
            draft.tensors[f"layers.{i}.self_attn.{part}_proj.bias"] = bias
            draft.gguf[f"blk.{i}.attn_{name}.bias"] = bias
    check_equal(convert_written(tmp_path, "zlab", draft).path, draft.gguf)


def test_deepspec_without_a_markov_head(tmp_path: Path) -> None:
    """deepseek-ai/dflash_qwen3_8b_block7 drafts from its anchor."""
    draft = make_draft()
    draft.config["dflash_config"] |= {
        "markov_rank": 0, "enable_confidence_head": False, "markov_head_type": None,
    }  # fmt: skip
    report = convert_written(tmp_path, "deepspec", draft)
    assert report.draft == "DFlash"
    assert gguf_keys(report.path)["dflash.sample_from_anchor"] is True
