"""Draft files that contradict themselves, and drafts for another target, are refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader

from pyllama_spec import ArgumentError, Llama, ModelLoadError
from pyllama_spec.engine import quantize
from tests.models import Eagle3Config, model_path
from tests.models.eagle3 import eagle3_tensors, write_eagle3

Change = Callable[[dict[str, Any]], object]


def _without(*names: str) -> Change:
    return lambda tensors: [tensors.pop(name) for name in names]


def _ones(name: str, *shape: int) -> Change:
    return lambda tensors: tensors.update({name: np.ones(shape, np.float32)})


def _put(name: str, value: Any) -> Change:
    return lambda tensors: tensors.update({name: value})


def _d2t(index: int, value: int) -> Change:
    return lambda tensors: tensors["d2t"].__setitem__(index, value)


REDUCED = {"n_draft_vocab": 100}
REQUIRED = (
    "fc", "output_norm", "blk.0.attn_norm", "blk.0.attn_norm_2", "blk.0.attn_q", "blk.0.attn_k",
    "blk.0.attn_v", "blk.0.attn_output", "blk.0.ffn_norm", "blk.0.ffn_gate", "blk.0.ffn_up",
    "blk.0.ffn_down",
)  # fmt: skip
# The error names the first word of a case: (options of the head, what is done to its tensors).
BROKEN: dict[str, tuple[dict[str, Any], Change]] = {
    **{f"{name} is missing": ({"qk_norm": True}, _without(f"{name}.weight")) for name in REQUIRED},
    **{
        f"{one}_norm without the other": ({"qk_norm": True}, _without(f"blk.0.{one}_norm.weight"))
        for one in ("attn_q", "attn_k")
    },
    "enc.output_norm.1 is missing": ({"fc_norm": True}, _without("enc.output_norm.1.weight")),
    "enc.output_norm is missing": ({"norm_before_fc": True}, _without("enc.output_norm.weight")),
    "enc.output_norm.0 without its flag": ({}, _ones("enc.output_norm.0.weight", 64)),
    "attn_sinks is unknown": ({}, _ones("blk.0.attn_sinks.weight", 4)),
    "blk.1.attn_norm of a layer too many": ({}, _ones("blk.1.attn_norm.weight", 64)),
    "eagle3.fc_norm beside norm_before_fc": (
        {"fc_norm": True, "norm_before_fc": True}, _without(),
    ),
    "fc for other layers": ({}, _ones("fc.weight", 64, 128)),
    "blk.0.attn_q of a plain layer": ({}, _ones("blk.0.attn_q.weight", 64, 64)),
    "blk.0.attn_q without its gate": (
        {"output_gate": True}, _ones("blk.0.attn_q.weight", 64, 128),
    ),
    "output.weight is missing beside d2t": (REDUCED, _without("output.weight")),
    "output.weight without d2t": (REDUCED, _without("d2t")),
    "d2t of floats": (REDUCED, _put("d2t", np.arange(100, dtype=np.float32))),
    "d2t of other entries": ({}, _put("d2t", np.arange(500, dtype=np.int64))),
    "token_embd.weight is too short": ({}, _ones("token_embd.weight", 300, 64)),
    "d2t[3] behind the vocabulary": (REDUCED, _d2t(3, 320)),
    "d2t[99] below it": (REDUCED, _d2t(99, -1)),
    "d2t[50] is huge": (REDUCED, _d2t(50, 2**40)),
    "d2t with one id twice": (REDUCED, _put("d2t", np.zeros(100, np.int64))),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_file_that_contradicts_itself(name: str, tmp_path: Path) -> None:
    options, change = BROKEN[name]
    cfg = Eagle3Config(**options)
    tensors = eagle3_tensors(cfg)
    change(tensors)
    path = write_eagle3(tmp_path / "head.gguf", cfg, tensors)
    with pytest.raises((ModelLoadError, ArgumentError), match=re.escape(name.split()[0])):
        Llama(model_path("llama"), draft=path, n_threads=1)


def test_a_padded_vocabulary_is_taken() -> None:
    path = model_path("eagle3", n_vocab=400, output_scale=1.0)
    with Llama(model_path("llama"), draft=path, controller="fixed", n_threads=1) as llm:
        result = llm.create_completion([1, 2, 3], max_tokens=30, temperature=0)
        assert result["speculation"]["reason_off"] is None
        assert result["speculation"]["drafter"] == "eagle3"


def test_the_n_gram_table_of_an_earlier_version_is_skipped(tmp_path: Path) -> None:
    cfg, texts = Eagle3Config(output_scale=0.1), []
    table: dict[str, Any] = {"ngram.keys": np.zeros(5, np.int32), "ngram.p": np.ones((2, 3), "f4")}
    for more in ({}, table):
        path = write_eagle3(tmp_path / "head.gguf", cfg, {**eagle3_tensors(cfg), **more})
        with Llama(model_path("llama"), draft=path, controller="fixed", n_threads=1) as llm:
            answer = llm.create_completion([1, 2, 3], max_tokens=20, temperature=0)
        texts.append(answer["choices"][0]["text"])
        assert answer["speculation"]["drafted"] > 0
    assert texts[0] == texts[1]


@pytest.mark.parametrize("kind", ["Q8_0", "F16", "BF16"])
def test_a_quantised_head_keeps_its_table(kind: str, tmp_path: Path) -> None:
    source, out = model_path("perm_eagle3", reduced=True), tmp_path / "head.gguf"
    quantize(source, out, kind)
    before, after = (
        next(t.data for t in GGUFReader(path).tensors if t.name == "d2t") for path in (source, out)
    )
    assert np.array_equal(before, after)
    assert out.stat().st_size < source.stat().st_size
    with Llama(model_path("perm"), draft=out, lookup=0, controller="fixed", n_threads=1) as llm:
        stats = llm.create_completion([1, 2, 3], max_tokens=30, temperature=0)["speculation"]
    assert stats["accepted"] == stats["drafted"] > 0
