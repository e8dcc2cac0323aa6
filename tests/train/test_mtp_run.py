"""A run continues an MTP head: from a file with one to a better one beside it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pyllama_spec import Llama
from pyllama_spec.engine import Model
from pyllama_spec.gguf.reader import read_table
from pyllama_spec.train import UseConfig, train_from_use, train_mtp
from pyllama_spec.train.kinds.mtp import HeadFile, open_head
from pyllama_spec.train.kinds.mtp_facts import FAMILIES
from pyllama_spec.train.run.pipeline import TrainReport
from tests.models import model_path
from tests.mtp_tools import head_alone, without
from tests.train.tools import perm_mtp, quick_mtp_config

torch.set_num_threads(1)  # as in test_mtp_head.py
EPOCHS = 4


def speculation(target: Path, draft: Path | str) -> dict[str, Any]:
    """The speculation of a draft on greedy text of a target, with the text."""
    options: dict[str, Any] = {"n_ctx": 128, "n_threads": 1, "lookup": 0, "controller": "fixed"}
    with Llama(target, draft=draft, n_draft=3, **options) as llm:
        answer = llm.create_completion("b", max_tokens=60, temperature=0)
        return {**answer["speculation"], "text": answer["choices"][0]["text"]}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainReport, Path]:
    """A report, and the folder of its run."""
    folder = tmp_path_factory.mktemp("run")
    return train_mtp(quick_mtp_config(folder, epochs=EPOCHS)), folder


def test_a_head_that_knew_nothing_drafts(trained: tuple[TrainReport, Path]) -> None:
    report, _ = trained
    assert report.why_not == ""
    assert report.trained.tokens_per_round > 2 > 1.2 > report.untrained.tokens_per_round
    before, after = speculation(perm_mtp(), "mtp"), speculation(perm_mtp(), report.path)
    assert (before["drafter"], after["drafter"]) == ("mtp", "mtp")
    assert before["text"] == after["text"]
    assert before["acceptance_rate"] < 0.1 < 0.6 < after["acceptance_rate"]


def _copy_text(folder: Path, to: Path) -> None:
    """Text and features of another run, without its checkpoints."""
    name = "draft.gguf.train"
    shutil.copytree(folder / name, to / name, ignore=shutil.ignore_patterns("mtp"))


def test_training_continues_with_the_file(
    trained: tuple[TrainReport, Path], tmp_path: Path
) -> None:
    report, folder = trained
    head = tmp_path / "first.gguf"
    shutil.copy(report.path, head)
    _copy_text(folder, tmp_path)
    config = quick_mtp_config(tmp_path, init=head, epochs=0.5, lr=1e-6)
    more = train_mtp(config)
    assert more.untrained.tokens_per_round == report.trained.tokens_per_round
    assert more.why_not.startswith("held-out text has ")
    assert not config.out.exists()


# ---- files


@cache
def source_of(arch: str, **options: Any) -> HeadFile:
    """The head of a tiny model of two layers."""
    path = model_path("perm_mtp", arch=arch, **options)
    with Model(path) as model:
        return open_head(path, model.info)


def write_head(source: HeadFile, path: Path, kind: str = "f32") -> Path:
    """The head of a file as it is, alone."""
    from pyllama_spec.gguf.writer import write_gguf

    write_gguf(path, source.output(source.trained(), "x MTP head", {"seed": 1}, kind))
    return path


@pytest.mark.parametrize("arch", [*FAMILIES, "tied"])
def test_a_head_that_was_not_changed_drafts_the_same(arch: str, tmp_path: Path) -> None:
    if arch == "tied":  # the output matrix is the embedding
        target = without(source_of("qwen35").path, tmp_path / "tied.gguf", "output.weight")
        with Model(target) as model:
            source = open_head(target, model.info)
    else:
        source = source_of(arch)
    path = write_head(source, tmp_path / "head.gguf")
    assert ("output.weight" in read_table(path).tensors) == (arch != "tied")
    own, alone = speculation(source.path, "mtp"), speculation(source.path, path)
    counts = ("drafter", "drafted", "accepted", "rounds", "text")
    assert [own[name] for name in counts] == [alone[name] for name in counts]
    assert own["accepted"] > 30 or arch == "tied"


@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0", "BF16"])
def test_what_was_not_trained_stays_byte_by_byte(kind: str, tmp_path: Path) -> None:
    source = source_of("qwen35moe", quantised=kind)
    path = write_head(source, tmp_path / "head.gguf", "f16")
    before, after = read_table(source.path).tensors, read_table(path).tensors
    trained = source.shape.trained
    assert {*after} == {*source.shape.fixed, *trained}
    types = set()
    for name in source.shape.fixed:
        was, now = before[name], after[name]
        assert (was.type_id, was.shape) == (now.type_id, now.shape)
        assert _bytes(source.path, was.offset) == _bytes(path, now.offset)
        types.add(was.type_id)
    assert len(types) > 1
    f16 = {name for name in trained if after[name].type_id == 1}
    assert f16 == {name for name, shape in trained.items() if len(shape) == 2}
    with Model(path, load_mtp=True) as model:
        assert model.info.has_head


def _bytes(path: Path, offset: int, n: int = 512) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(n)


def test_a_head_without_a_norm_of_its_own_gets_the_targets(tmp_path: Path) -> None:
    source = model_path("perm_mtp", arch="qwen35")
    path = head_alone(source, tmp_path / "h.gguf", "blk.2.nextn.shared_head_norm.weight")
    with Model(path) as model:
        head = open_head(path, model.info)
    found = head.trained()[head.shape.last_norm]
    np.testing.assert_array_equal(found, head.floats("output_norm.weight"))
    assert head.shape.last_norm in read_table(write_head(head, tmp_path / "new.gguf")).tensors


# ---- from use


def test_a_head_is_trained_further_from_use(tmp_path: Path) -> None:
    """First with the target's own head, then with the file from that run."""
    store = tmp_path / "use.memory"
    options: dict[str, Any] = {"n_ctx": 128, "n_threads": 1, "controller": "fixed"}
    with Llama(perm_mtp(), draft="mtp", draft_memory=store, **options) as llm:
        for letter in "ABCDEFGHIJKLMNOPQRSTUVWX":
            llm.create_completion(letter, max_tokens=80, temperature=0)
    config = quick_mtp_config(tmp_path, epochs=4, n_ctx=64, prompts=None)
    config = replace(config, use=UseConfig(store, n_other_tokens=100))
    assert config.begun_with == config.target
    first = train_from_use(config)
    assert (first.why_not, first.kept) == ("", None)
    assert (
        first.after.tokens_per_round > 1.2 > first.before.tokens_per_round
    )  # of six conversations
    assert sorted(one.name for one in tmp_path.iterdir()) == [
        "draft.gguf", "prompts.jsonl", "use.memory",
    ]  # fmt: skip
    assert config.begun_with == config.out
    before = config.out.read_bytes()
    second = train_from_use(replace(config, fit=replace(config.fit, lr=1e-7, epochs=0.5)))
    assert second.before.tokens_per_round == first.after.tokens_per_round
    assert second.why_not
    assert config.out.read_bytes() == before
