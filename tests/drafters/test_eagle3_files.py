"""Draft files that contradict themselves, and drafts for another target, are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader

from pyllama_spec import ArgumentError, Llama, ModelLoadError, UnsupportedError
from pyllama_spec.engine import Batch, Context, Model, quantize
from tests.eagle3_tools import ngram_arrays
from tests.models import Eagle3Config, model_path
from tests.models.eagle3 import eagle3_tensors, write_eagle3
from tests.oracles import tiny

Tensors = dict[str, Any]


def drop(name: str) -> Callable[[Tensors], None]:
    """Takes a tensor out."""
    return lambda tensors: tensors.pop(name)


def add(name: str, *shape: int) -> Callable[[Tensors], None]:
    """Puts a tensor in."""
    return lambda tensors: tensors.update({name: np.ones(shape, np.float32)})


def put(name: str, value: Any) -> Callable[[Tensors], None]:
    """Puts an array in place of another."""
    return lambda tensors: tensors.update({name: value})


def d2t_of(index: int, value: int) -> Callable[[Tensors], None]:
    """Changes an entry of d2t."""

    def change(tensors: Tensors) -> None:
        tensors["d2t"][index] = value

    return change


def table(**changes: Any) -> Callable[[Tensors], None]:
    """Puts an n-gram table in, with some parts changed or, for None, left out."""
    arrays = ngram_arrays({(3,): (5, 0.5), (3, 4): (6, 1.0)})
    for name, value in changes.items():
        arrays[f"ngram.{name}"] = value
    return lambda tensors: tensors.update({k: v for k, v in arrays.items() if v is not None})


REDUCED = {"n_draft_vocab": 100}
# name: (options of the head, what is done to its tensors, what the error says)
BROKEN: dict[str, tuple[dict[str, Any], Callable[[Tensors], None], str]] = {
    **{
        f"without {name}": (
            {"qk_norm": True},
            drop(name),
            name.rpartition(".")[0].rpartition(".")[2],
        )
        for name in (
            "fc.weight",
            "output_norm.weight",
            "blk.0.attn_norm.weight",
            "blk.0.attn_norm_2.weight",
            "blk.0.attn_q.weight",
            "blk.0.attn_k.weight",
            "blk.0.attn_v.weight",
            "blk.0.attn_output.weight",
            "blk.0.ffn_norm.weight",
            "blk.0.ffn_gate.weight",
            "blk.0.ffn_up.weight",
            "blk.0.ffn_down.weight",
            "blk.0.attn_q_norm.weight",
            "blk.0.attn_k_norm.weight",
        )
    },
    "without a norm of fc_norm": (
        {"fc_norm": True},
        drop("enc.output_norm.1.weight"),
        r"enc\.output_norm\.1\.weight",
    ),
    "without the norm before fc": (
        {"norm_before_fc": True},
        drop("enc.output_norm.weight"),
        r"enc\.output_norm\.weight",
    ),
    "norms without their flag": (
        {},
        add("enc.output_norm.0.weight", 64),
        r"enc\.output_norm\.0\.weight does not belong",
    ),
    "a table without keys": ({}, table(keys=None), r"not all of ngram\.keys"),
    "a table without probabilities": ({}, table(p=None), r"not all of ngram\.keys"),
    "a table with floats": (
        {},
        table(p=np.ones(2, np.float32)),
        r"ngram\.p is no vector of i8",
    ),
    "a table with a matrix": (
        {},
        table(ids=np.ones((2, 2), np.int32)),
        r"ngram\.ids is no vector of i32",
    ),
    "a table of two lengths": (
        {},
        table(p=np.ones(3, np.int8)),
        r"ngram\.p has 3 entries, and ngram\.keys has 2",
    ),
    "an unknown tensor": ({}, add("blk.0.attn_sinks.weight", 4), "attn_sinks"),
    "a second layer too many": ({}, add("blk.1.attn_norm.weight", 64), r"blk\.1\.attn_norm"),
    "both norms": (
        {"fc_norm": True, "norm_before_fc": True},
        drop("nothing"),
        "eagle3.fc_norm and eagle3.norm_before_fc",
    ),
    "fc for other layers": ({}, put("fc.weight", np.ones((64, 128), np.float32)), r"fc\.weight"),
    "q of a plain layer": (
        {},
        put("blk.0.attn_q.weight", np.ones((64, 64), np.float32)),
        r"blk\.0\.attn_q",
    ),
    "q without its gate": (
        {"output_gate": True},
        put("blk.0.attn_q.weight", np.ones((64, 128), np.float32)),
        r"blk\.0\.attn_q",
    ),
    "d2t without an output": (REDUCED, drop("output.weight"), "d2t but no output.weight"),
    "a reduced output without d2t": (REDUCED, drop("d2t"), r"output\.weight"),
    "d2t of floats": (REDUCED, put("d2t", np.arange(100, dtype=np.float32)), "d2t is f32"),
    "a longer d2t": ({}, put("d2t", np.arange(500, dtype=np.int64)), "d2t has 500 entries"),
    "an embedding too short": (
        {},
        put("token_embd.weight", np.ones((300, 64), np.float32)),
        "token_embd.weight has 300 rows",
    ),
}


def broken(path: Path, options: dict[str, Any], change: Callable[[Tensors], Any]) -> Path:
    """Writes a head with a fault."""
    cfg = Eagle3Config(**options)
    tensors = eagle3_tensors(cfg)
    if change.__qualname__.startswith("drop"):
        tensors["nothing"] = np.ones(1, np.float32)
        change(tensors)
        tensors.pop("nothing", None)
    else:
        change(tensors)
    return write_eagle3(path, cfg, tensors)


@pytest.mark.parametrize("name", BROKEN)
def test_a_file_that_contradicts_itself(name: str, tmp_path: Path) -> None:
    options, change, message = BROKEN[name]
    path = broken(tmp_path / "head.gguf", options, change)
    with pytest.raises(ModelLoadError, match=message):
        Llama(model_path("llama"), draft=path, n_threads=1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (d2t_of(3, 320), r"d2t\[3\] = 320 is outside the vocabulary"),
        (d2t_of(99, -1), r"d2t\[99\] = -1 is outside"),
        (d2t_of(50, 2**40), r"d2t\[50\] = 1099511627776"),
        (put("d2t", np.zeros(100, np.int64)), "the target id 0 twice.*offsets"),
    ],
)
def test_d2t_that_points_nowhere(
    change: Callable[[Tensors], Any], message: str, tmp_path: Path
) -> None:
    path = broken(tmp_path / "head.gguf", REDUCED, change)
    with pytest.raises(ArgumentError, match=message):
        Llama(model_path("llama"), draft=path, n_threads=1)


def test_a_padded_vocabulary_is_taken() -> None:
    path = model_path("eagle3", n_vocab=400, output_scale=1.0)
    with Llama(model_path("llama"), draft=path, controller="fixed", n_threads=1) as llm:
        result = llm.create_completion([1, 2, 3], max_tokens=30, temperature=0)
        assert result["speculation"]["reason_off"] is None
        assert result["speculation"]["drafter"] == "eagle3"


def test_calls_that_do_not_fit_a_head() -> None:
    draft = Model(model_path("eagle3", n_embd=32))
    with (
        Context(tiny("llama"), n_ctx=32) as target,
        Context(draft, target=target, n_ctx=32) as head,
    ):
        ids, rows = Batch(2), Batch(2, n_row=192)
        ids.extend([1, 2], 0, output_all=True)
        with pytest.raises(ArgumentError, match="an id and a row"):
            head.decode(ids)
        for i in range(2):
            rows.add(None, i, row=np.ones(192, np.float32))
        with pytest.raises(ArgumentError, match="an id and a row"):
            head.decode(rows)
        rows.clear()
        rows.extend([1, 2], 0, rows=[np.ones((2, 192), np.float32)], output_last=True)
        with pytest.raises(UnsupportedError, match="no encoder"):
            head.decode(rows, encode=True)
        rows.logits = False
        head.decode(rows)
        likeliest, probabilities, row = head.draft_candidates(1)
        assert (len(likeliest), len(probabilities), row.shape) == (2, 2, (32,))
        assert 1 >= probabilities[0] >= probabilities[1] > 0
        for i, message in ((0, "no output"), (2, "outside the last batch")):
            with pytest.raises(ArgumentError, match=message):
                head.draft_candidates(i)
        with pytest.raises(ArgumentError, match="no logits"):
            head.logits(1)
        with pytest.raises(UnsupportedError, match="EAGLE-3"):
            target.draft_candidates(0)
    with pytest.raises(ArgumentError, match="100 numbers wide"):
        rows.clear()
        rows.extend([1], 0, rows=[np.ones((1, 100), np.float32)])


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
