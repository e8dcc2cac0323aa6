"""From a GGUF to a DFlash draft, in seconds: learning, interruptions, refusals."""

from __future__ import annotations

import json
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyllama_spec import ArgumentError, Llama
from pyllama_spec.engine import Model
from pyllama_spec.gguf.reader import read_keys
from pyllama_spec.train import CheckpointError, TrainError, train_dflash, train_eagle3
from pyllama_spec.train.dflash.kind import shape_of
from pyllama_spec.train.run.init_draft import read_init_draft
from pyllama_spec.train.run.pipeline import TrainReport
from tests.parity.tensor_file import TensorFile
from tests.train.tools import Interrupting, perm, quick_block_config, quick_config


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainReport, Path]:
    """A whole run without interruption, and its folder."""
    folder = tmp_path_factory.mktemp("trained")
    return train_dflash(quick_block_config(folder)), folder


def test_a_trained_draft_is_better_than_an_untrained_one(
    trained: tuple[TrainReport, Path],
) -> None:
    report, folder = trained
    assert report.untrained.tokens_per_round < 1.3
    # Measured on a dozen rounds, of at most 4.
    assert report.trained.tokens_per_round > 1.8
    assert report.trained.by_depth == sorted(report.trained.by_depth, reverse=True)
    assert len(report.trained.by_depth) == 3
    own = folder / "draft.gguf.train" / "dflash"
    points = json.loads((own / "curves.json").read_text(encoding="utf-8"))
    assert points[-1]["loss"][0] < points[0]["loss"][0]
    assert (own / "checkpoints" / "best.pt").exists()


def test_the_file_has_what_a_drafter_asks_for(trained: tuple[TrainReport, Path]) -> None:
    report, folder = trained
    keys = read_keys(report.path, lambda name: name.startswith(("dflash.", "pyllama_spec.train.")))
    values = {name: key.value for name, key in keys.items()}
    assert values["dflash.block_size"] == 4
    assert values["dflash.block_count"] == 1
    assert list(values["dflash.target_layers"]) == [0, 1, 2]
    assert values["dflash.attention.causal"] is False
    assert "dflash.sample_from_anchor" not in values
    command = values["pyllama_spec.train.command"].decode()
    assert command.startswith("pyllama-spec train dflash -m perm-")
    assert "--layers 1" in command
    assert "--markov 0" in command
    assert str(folder).encode() not in report.path.read_bytes()
    tensors = TensorFile(report.path).tensors
    assert tensors["fc.weight"].shape == (320, 3 * 320)
    assert tensors["output.weight"].shape == (320, 320)
    assert "token_embd.weight" not in tensors
    with Model(report.path) as model, Model(perm()) as target:
        assert model.info.arch == "dflash"
        assert model.info.n_embd == target.info.n_embd


def test_the_file_drafts(trained: tuple[TrainReport, Path]) -> None:
    """The drafter accepts what training measured, and the text is the same without it."""
    report, _ = trained
    prompt, n = [5, 9, 17], 60
    with Llama(perm(), n_ctx=128, n_threads=1) as llm:
        expected = llm.create_completion(prompt, max_tokens=n, temperature=0)
    options: dict[str, Any] = {
        "n_ctx": 128, "n_threads": 1, "lookup": 0, "controller": "fixed"
    }  # fmt: skip
    with Llama(perm(), draft=report.path, **options) as llm:
        response = llm.create_completion(prompt, max_tokens=n, temperature=0)
    assert response["choices"][0]["text"] == expected["choices"][0]["text"]
    assert response["speculation"]["reason_off"] is None
    assert response["speculation"]["tokens_per_round"] > 1.5


def test_the_file_has_a_table_of_what_follows(
    trained: tuple[TrainReport, Path], tmp_path: Path
) -> None:
    report, folder = trained
    assert len((Model(report.path).ngram_arrays() or ((),))[0]) > 20
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    none = train_dflash(replace(quick_block_config(tmp_path), n_ngrams=0)).path
    assert Model(none).ngram_arrays() is None


@pytest.mark.parametrize(("stage", "n"), [("writing text", 70), ("training", 9)])
def test_an_interrupted_run_gives_the_same_file(
    stage: str, n: int, tmp_path: Path, trained: tuple[TrainReport, Path]
) -> None:
    config = quick_block_config(tmp_path)

    def act() -> None:
        if stage == "training" and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.raise_signal(signal.SIGINT)
        else:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_dflash(config, Interrupting(stage, n, act))
    assert not config.out.exists()
    report = train_dflash(config)
    assert report.path.read_bytes() == trained[0].path.read_bytes()


def test_two_kinds_share_text_and_features(
    tmp_path: Path, trained: tuple[TrainReport, Path]
) -> None:
    shutil.copytree(trained[1] / "draft.gguf.train", tmp_path / "work")
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "work").rglob("shard-*.npy")}
    config = quick_config(tmp_path, epochs=0.2, work=tmp_path / "work")
    report = train_eagle3(config)
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "work").rglob("shard-*.npy")} == before
    assert report.n_answer_tokens == trained[0].n_answer_tokens
    again = train_dflash(quick_block_config(tmp_path, work=tmp_path / "work"))
    assert again.trained == trained[0].trained, "and neither spoils what the other has"


def test_features_of_other_layers_are_left_alone(
    tmp_path: Path, trained: tuple[TrainReport, Path]
) -> None:
    """By default the kinds read different layers, but share a work folder."""
    work = tmp_path / "work"
    shutil.copytree(trained[1] / "draft.gguf.train", work)
    before = {p: p.stat().st_mtime_ns for p in work.rglob("shard-*.npy")}
    report = train_eagle3(quick_config(tmp_path, epochs=0.2, work=work, target_layers=(1, 2)))
    assert report.n_answer_tokens == trained[0].n_answer_tokens
    assert {p: p.stat().st_mtime_ns for p in before} == before
    assert list(work.glob("features-1-2/shard-*"))


def test_training_goes_on_with_the_weights_of_a_draft(
    tmp_path: Path, trained: tuple[TrainReport, Path]
) -> None:
    first = trained[0]
    config = quick_block_config(tmp_path, init=first.path, epochs=0.1, lr=1e-9, seed=2)
    report = train_dflash(config)
    with Model(perm()) as target:
        old, new = (
            read_init_draft(r.path, target.info, "dflash", shape_of) for r in (first, report)
        )
    assert old.shape == new.shape
    for name, values in old.tensors.items():
        assert abs(values - new.tensors[name]).max() < 1e-6, name
    with pytest.raises(TrainError, match="is a llama, not a draft of kind dflash"):
        train_dflash(replace(config, init=perm()))


def test_followers_and_confidence_are_learned(tmp_path: Path) -> None:
    config = quick_block_config(
        tmp_path, markov_rank=16, confidence=True, sample_from_anchor=True, weights="dpace",
        missed_share=0.0, n_threads=1,
    )  # fmt: skip
    report = train_dflash(config)
    assert len(report.trained.by_depth) == 4, "a block of 4 slots drafts 4"
    # Measured on some twenty rounds, and the loss ends with the first wrong pick.
    assert report.trained.tokens_per_round > 1.3 > report.untrained.tokens_per_round
    tensors = TensorFile(report.path).tensors
    assert tensors["markov_w1.weight"].shape == (320, 16)
    assert tensors["markov_w2.weight"].shape == (320, 16)
    assert tensors["conf_proj.weight"].size == 320 + 16
    assert abs(tensors["conf_proj.weight"]).max() > 0
    command = read_keys(report.path, lambda name: name == "pyllama_spec.train.command")
    words = next(iter(command.values())).value.decode()
    assert "--from-anchor" in words
    assert "--markov 16" in words


def test_bfloat16_learns_as_well(tmp_path: Path) -> None:
    """The losses follow float32's on the same blocks."""
    courses = []
    for precision in ("bf16", "fp32"):
        folder = tmp_path / precision
        folder.mkdir()
        train_dflash(quick_block_config(folder, precision=precision, epochs=4))
        path = folder / "draft.gguf.train" / "dflash" / "curves.json"
        courses.append(json.loads(path.read_text(encoding="utf-8")))
    for a, b in zip(*courses, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=0.1, abs=0.05)


def test_work_of_other_settings_is_refused(
    tmp_path: Path, trained: tuple[TrainReport, Path]
) -> None:
    shutil.copytree(trained[1] / "draft.gguf.train", tmp_path / "draft.gguf.train")
    with pytest.raises(CheckpointError, match=r"head\.block_size=4, and this run has 5"):
        train_dflash(quick_block_config(tmp_path, block_size=5))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"block_size": 1}, "block_size=1"),
        ({"block_size": 65}, "block_size=65 is above 64"),
        ({"block_size": 33, "markov_rank": 8}, "block_size=33 is above 32 with a markov_rank"),
        ({"n_layer": 0}, "n_layer=0"),
        ({"confidence": True}, "confidence needs a markov_rank"),
        ({"sample_from_anchor": True}, "sample_from_anchor needs a markov_rank"),
        ({"anchor_share": 0.0}, "anchor_share=0 leaves nothing"),
        ({"dpace_alpha": 1.5}, r"dpace_alpha=1\.5 is outside 0 \.\. 1"),
        ({"hard_share": -1.0}, "hard_share"),
        ({"weights": "sum"}, "weights='sum' is not one of decay, dpace"),
        ({"missed_share": 2.0}, "missed_share"),
    ],
)
def test_bad_settings_are_refused_before_anything_is_read(
    changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(ArgumentError, match=reason):
        quick_block_config(tmp_path, **changes)
