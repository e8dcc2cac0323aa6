"""Files with MTP heads load on request, and are refused in one line if they cannot draft."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyllama_spec import Llama
from pyllama_spec.drafters import Mtp
from pyllama_spec.drafters.registry import wants_head
from pyllama_spec.engine import Context, Model
from pyllama_spec.engine.model import HEAD_ROWS, most_heads
from pyllama_spec.errors import ArgumentError, ModelLoadError, UnsupportedError
from pyllama_spec.speculative import SpeculativeLoop
from tests.models import ARCHITECTURES, TinyConfig, model_path
from tests.models.build import WITH_HEADS
from tests.models.mtp import HEADS, SEVERAL, add_heads
from tests.models.sketch import Sketch
from tests.models.streams import deepseek4_compressors
from tests.mtp_tools import ARCHS, head_alone, mtp_context, with_head, without
from tests.oracles import tiny
from tests.tiers import release_except


def open_llama(path: Path, **options: Any) -> Llama:
    return Llama(path, **{"n_ctx": 128, "n_threads": 1, **options})


def test_architectures() -> None:
    """The known architectures are those with a builder, recomputed by the reference."""
    assert all(most_heads(arch) for arch in ARCHS)
    assert set(ARCHS) == set(HEADS)
    assert {arch for arch in ARCHS if most_heads(arch) > 1} == set(SEVERAL)
    assert not any(most_heads(arch) for arch in ("llama", "gemma4", ""))


@pytest.mark.parametrize("arch", release_except(ARCHS, ("qwen35",)))
def test_a_head_is_loaded_when_asked_for(arch: str) -> None:
    path = model_path(arch, n_heads=1)
    with Model(path) as plain, Model(path, load_mtp=True) as model:
        assert (plain.info.n_heads, plain.info.has_head) == (1, False)
        assert plain.head_weights is None
        assert (model.info.n_heads, model.info.has_head) == (1, True)
        weights = model.head_weights
        assert weights is not None
        assert weights.type == "f32"
        assert 0 < weights.n_bytes < model.info.size_bytes
        assert plain.info.n_layer == model.info.n_layer == 4
    with Model(model_path(arch)) as model:
        assert (model.info.n_heads, model.info.has_head) == (0, False)


@pytest.mark.parametrize(
    ("kind", "options"), [("llama", {}), ("qwen35", {}), ("qwen35", {"n_heads": 2})]
)
def test_a_file_without_a_head_to_draft_with(kind: str, options: dict[str, Any]) -> None:
    path = model_path(kind, **options)
    for draft in ("mtp", Mtp()):
        with pytest.raises(ArgumentError, match=path.name):
            open_llama(path, draft=draft)


def test_a_head_of_an_architecture_that_is_not_known(tmp_path: Path) -> None:
    m = Sketch(TinyConfig("llama"))
    ARCHITECTURES["llama"](m)
    m.key("nextn_predict_layers", 1)
    path = m.write(tmp_path / "head.gguf")
    with pytest.raises(ArgumentError, match="an MTP head of architecture 'llama', which this"):
        open_llama(path, draft="mtp")
    assert not wants_head("auto", path)


@pytest.mark.parametrize(
    ("key", "value"), [("attention.compress_ratios", [0, 4, 128, 4, 4]), ("hash_layer_count", 5)]
)
def test_a_head_that_the_graph_of_its_architecture_lacks(
    tmp_path: Path, key: str, value: Any
) -> None:
    m = Sketch(TinyConfig("deepseek4", n_heads=1))
    WITH_HEADS["deepseek4"](m)
    add_heads(m)
    m.key(key, value)
    for index in range(5) if key == "hash_layer_count" else ():
        m.tensors.pop(f"blk.{index}.exp_probs_b.bias")
        m.put(f"blk.{index}.ffn_gate_tid2eid.weight", np.zeros((m.cfg.n_vocab, 2)))
    if key == "attention.compress_ratios":
        deepseek4_compressors(m, "blk.4.", 4)
    path = m.write(tmp_path / "odd.gguf")
    with pytest.raises(ArgumentError, match=r"odd\.gguf"):
        open_llama(path, draft="mtp")


def test_an_assistant_of_gemma_4(tmp_path: Path) -> None:
    m = Sketch(TinyConfig("gemma4-assistant"))
    ARCHITECTURES["llama"](m)
    m.key("nextn_predict_layers", m.cfg.n_layer)
    path = m.write(tmp_path / "assistant.gguf")
    with pytest.raises(UnsupportedError, match=r"assistant\.gguf"):
        open_llama(model_path("llama"), draft=path)


# Of each head its wiring, and what the loader takes for optional.
_NEEDED = [
    ("qwen35", 1, ("nextn.eh_proj", "nextn.enorm", "nextn.hnorm", "attn_norm")),
    ("step35", 3, ("nextn.eh_proj", "nextn.hnorm", "ffn_up_exps", "ffn_down_shexp")),
    ("mimo2", 3, ("nextn.enorm", "ffn_gate")),
    ("hy_v3", 3, ("nextn.enorm", "ffn_gate_exps", "ffn_up_shexp")),
]


@pytest.mark.parametrize(
    ("arch", "n_heads", "tensor"), [(a, n, name) for a, n, names in _NEEDED for name in names]
)
def test_a_head_with_a_missing_tensor(tmp_path: Path, arch: str, n_heads: int, tensor: str) -> None:
    name = f"blk.{4 + (n_heads > 1)}.{tensor}"
    path = without(model_path(arch, n_heads=n_heads), tmp_path / "torso.gguf", f"{name}.weight")
    with pytest.raises((ArgumentError, ModelLoadError), match=re.escape(name)):
        open_llama(path, draft="mtp")
    if (arch, tensor) == ("qwen35", "nextn.eh_proj"):  # whether others are there the engine looks
        with open_llama(path) as llm:
            llm.create_completion([1, 2, 3], max_tokens=4)


def test_a_head_whose_matrices_are_not_joined(tmp_path: Path) -> None:
    """Separate matrices, which the loader takes and the engine's graph does not, are refused."""
    m = Sketch(TinyConfig("mimo2", n_heads=2))
    WITH_HEADS["mimo2"](m)
    add_heads(m)
    joined, width = m.tensors.pop("blk.5.attn_qkv.weight"), m.cfg.head_dim
    ends = [m.cfg.n_head * width, (m.cfg.n_head + m.cfg.n_head_kv) * width]
    for part, array in zip("qkv", np.split(joined, ends), strict=True):
        m.put(f"blk.5.attn_{part}.weight", array)
    path = m.write(tmp_path / "split.gguf")
    with pytest.raises(ArgumentError, match=r"there is no tensor blk\.5\.attn_qkv\.weight"):
        open_llama(path, draft="mtp")


def test_a_head_without_an_output_matrix(tmp_path: Path) -> None:
    names = [n for n in _tensors(model_path("step35", n_heads=2)) if n.startswith("blk.")]
    layers = [n for n in names if int(n.split(".")[1]) < 4]
    path = without(model_path("step35", n_heads=2), tmp_path / "h.gguf", "output.weight", *layers)
    with pytest.raises((ArgumentError, ModelLoadError), match=r"output"):
        open_llama(model_path("step35"), draft=path)


def test_more_sequences_than_heads_have_room_for() -> None:
    drafter = Mtp()
    model = with_head("step35", n_heads=3)
    with (
        mtp_context(model, drafter, n_ctx=860, n_batch=128, n_seq_max=86) as context,
        pytest.raises(ArgumentError),
    ):
        drafter.attach(context)


def test_a_model_that_was_loaded_without_its_head() -> None:
    model = tiny("qwen35", n_heads=1)
    drafter = Mtp()
    with pytest.raises(ArgumentError, match="was not loaded, or is not whole"):
        drafter.check(model)
    with (
        mtp_context(model, drafter, target_layers=()) as context,
        pytest.raises(ArgumentError, match="not loaded"),
    ):
        drafter.attach(context)
    with pytest.raises(ArgumentError, match="not loaded"):
        Context(model, n_ctx=64, n_threads=1, is_head=True)
    with pytest.raises(ArgumentError, match="not attached to a target"):
        _ = Mtp().model


@pytest.mark.parametrize("arch", release_except(ARCHS, ("qwen35",)))
def test_the_context_of_a_head(arch: str) -> None:
    """It never has embeddings, pooling or snapshots, and it uses the target's threads."""
    model, drafter = with_head(arch, n_heads=1), Mtp(max_draft=2)
    with mtp_context(model, drafter, n_threads=2) as target:
        drafter.attach(target)
        head = drafter.context
        assert head is not None
        assert head.model is model
        assert head.n_threads == target.n_threads
        assert (head.n_rs_seq, head.pooling) == (0, "none")
        assert head.memory_bytes < target.memory_bytes
    with Context(
        model, n_ctx=64, n_threads=1, n_rs_seq=4, embeddings=True, pooling="mean", is_head=True
    ) as context:
        assert (context.n_rs_seq, context.pooling) == (0, "none")
    with Context(model, n_ctx=64, n_threads=1, pooling="mean", target_layers=(HEAD_ROWS,)) as one:
        assert one.pooling == "none"


@pytest.mark.parametrize(("n_wanted", "n_most"), [(8, 3), (2, 2)])
def test_the_number_of_heads_is_a_bound_before_anything_is_opened(
    n_wanted: int, n_most: int
) -> None:
    """Logits, round, controller and doctor use the bounded number, not the requested one."""
    path, drafter = model_path("step35", n_heads=3), Mtp(max_draft=n_wanted)
    with open_llama(path, draft=drafter) as llm:
        runtime = llm._opened.runtime
        assert runtime.context.params.n_outputs_max == 1 + n_most
        assert (runtime.round.max_draft, drafter.max_draft) == (n_most, n_most)
    model, drafter = with_head("step35", n_heads=3), Mtp(max_draft=n_wanted)
    drafter.check(model)
    assert drafter.max_draft == n_most
    drafter.check(with_head("step35", n_heads=1))  # whose one head drafts them all
    assert drafter.max_draft == n_wanted
    drafter.check(model)
    loop = SpeculativeLoop(mtp_context(model, Mtp(max_draft=n_wanted)), Mtp(max_draft=n_wanted))
    assert loop.max_draft == n_most


# ---- a head in a file of its own


@pytest.mark.parametrize("arch", release_except(ARCHS, ("qwen35",)))
def test_a_head_in_a_file_of_its_own(tmp_path: Path, arch: str) -> None:
    """It works with a target whose own head is not loaded, and with a target without a head."""
    source = model_path("perm_mtp", arch=arch)
    head = head_alone(source, tmp_path / "mtp-head.gguf")
    with Model(source) as model:
        names = [n for n in _tensors(source) if n.startswith(f"blk.{model.info.n_layer}.")]
    # What deepseek4's loader does not find where a head would be it does not count as one, and
    # looks for a layer there.
    bare = model_path("perm_mtp", arch=arch, n_heads=0) if arch == "deepseek4" else source
    trunk = without(bare, tmp_path / "trunk.gguf", *names)
    texts = []
    for target, draft in ((source, None), (source, head), (trunk, str(head)), (trunk, "auto")):
        with open_llama(
            target, draft=draft, lookup=0 if draft else None, controller="fixed"
        ) as llm:
            answer = llm.create_completion([3, 4, 5], max_tokens=20, temperature=0)
            texts.append(answer["choices"][0]["text"])
            found = answer["speculation"]
            assert found["drafter"] == ("mtp" if draft else "none")
            assert found["accepted"] == found["drafted"]
            assert found["drafted"] > 10 or not draft
            assert not llm._opened.model.info.has_head
    assert len(set(texts)) == 1


def _tensors(path: Path) -> list[str]:
    from gguf import GGUFReader

    return [tensor.name for tensor in GGUFReader(path).tensors]


def test_a_head_in_a_file_of_its_own_for_another_model(tmp_path: Path) -> None:
    head = head_alone(model_path("perm_mtp", arch="qwen35"), tmp_path / "head.gguf")
    for target in (
        model_path("qwen35moe"),
        model_path("qwen35", n_layer=2),
        model_path("qwen35", n_layer=4),
        model_path("qwen35", n_layer=2, n_embd=320, n_vocab=384),
    ):
        with pytest.raises(ArgumentError, match=r"head\.gguf"):
            open_llama(target, draft=head)


def test_a_head_alone_is_no_target(tmp_path: Path) -> None:
    head = head_alone(model_path("perm_mtp", arch="qwen35"), tmp_path / "head.gguf")
    with pytest.raises(UnsupportedError, match=r"head\.gguf"):
        open_llama(head)
    with Model(head) as model:
        assert model.info.is_head_alone
        with pytest.raises(UnsupportedError, match="holds an MTP head and no layers"):
            Context(model, n_ctx=64, n_threads=1)
        with pytest.raises(UnsupportedError, match="holds an MTP head and no layers"):
            model.check_layer_inputs((0,))
    assert not tiny("qwen35", n_heads=1).info.is_head_alone


# ---- auto


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A target without a head, and nothing beside it."""
    os.link(model_path("llama"), tmp_path / "target.gguf")
    return tmp_path


def note(path: Path) -> tuple[str, str]:
    """The choice of draft="auto", and its reason."""
    with open_llama(path, draft="auto") as llm:
        answer = llm.create_completion([3, 4, 5], max_tokens=3)
        found = answer["speculation"]
        return found["drafter"], found["note"]


def test_auto_takes_the_head_of_the_file() -> None:
    for options in ({}, {"quantised": "Q8_0"}):
        assert note(model_path("qwen35", n_heads=1, **options)) == (
            "mtp", "auto chose mtp: the file has an MTP head",
        )  # fmt: skip


def test_auto_takes_a_draft_beside_the_target_that_was_made_for_it(folder: Path) -> None:
    (folder / "0.gguf").write_bytes(b"GGUF, but not really")
    (folder / "dir.gguf").mkdir()
    os.link(model_path("perm_eagle3"), folder / "a.gguf")
    os.link(model_path("qwen2"), folder / "other.gguf")
    name, why = note(folder / "target.gguf")
    assert name == "suffix"
    assert "the file has no MTP head, and no draft for it lies beside it" in why
    os.link(model_path("eagle3"), folder / "y.gguf")
    os.link(model_path("dflash"), folder / "z.gguf")
    assert note(folder / "target.gguf") == (
        "eagle3", "auto chose eagle3: y.gguf lies beside the file and was made for it",
    )  # fmt: skip


def test_auto_says_that_a_head_cannot_be_used(folder: Path) -> None:
    os.link(model_path("qwen35", n_heads=2), folder / "two.gguf")
    name, why = note(folder / "two.gguf")
    assert name == "suffix"
    assert "no MTP head that this version can draft with" in why
