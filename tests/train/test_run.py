"""From a GGUF to a draft, in seconds: learning, interruptions, refusals."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pyllama_spec import ArgumentError, Llama
from pyllama_spec.gguf.reader import read_keys
from pyllama_spec.train import CheckpointError, DivergedError, TrainError, train_eagle3
from pyllama_spec.train.run.kind import Kind
from pyllama_spec.train.run.objective import acceptance_of, accepted_in_rounds
from pyllama_spec.train.run.pipeline import TrainReport
from tests.models import model_path
from tests.train.tools import Interrupting, perm, quick_config


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainReport, Path]:
    """A whole run without interruption, and its folder."""
    folder = tmp_path_factory.mktemp("trained")
    return train_eagle3(quick_config(folder)), folder


def test_a_trained_head_drafts_better_than_an_untrained_one(
    trained: tuple[TrainReport, Path],
) -> None:
    report, _ = trained
    assert report.untrained.tokens_per_round < 1.2
    # Measured on a dozen rounds, of at most 5.
    assert report.trained.tokens_per_round > 2.5
    assert report.trained.by_depth == sorted(report.trained.by_depth, reverse=True)
    assert report.n_answer_tokens >= 800
    assert report.coverage == 1.0


def test_the_measured_acceptance_is_what_decoding_sees(trained: tuple[TrainReport, Path]) -> None:
    report, _ = trained
    options: dict[str, Any] = {
        "n_ctx": 128, "n_threads": 1, "lookup": 0, "controller": "fixed"
    }  # fmt: skip
    with Llama(perm(), draft=report.path, **options) as llama:
        speculation = [
            llama.create_completion(text, max_tokens=30, temperature=0)["speculation"]
            for text in ("quick", "brown fox", "over, a")
        ]
    rounds = sum(one["rounds"] for one in speculation)
    per_round = 1 + sum(one["accepted"] for one in speculation) / rounds
    assert per_round == pytest.approx(report.trained.tokens_per_round, abs=0.6)


def test_the_file_says_where_it_comes_from(trained: tuple[TrainReport, Path]) -> None:
    report, folder = trained
    keys = read_keys(report.path, lambda name: name.startswith("pyllama_spec.train."))
    values = {name.removeprefix("pyllama_spec.train."): key.value for name, key in keys.items()}
    assert json.loads(values["versions"])["torch"] == torch.__version__
    assert len(values["corpus_sha256"]) == len(values["target_sha256"]) == 64
    assert values["tokens"] == report.n_tokens_seen
    assert str(folder).encode() not in report.path.read_bytes()


def test_acceptance_says_how_sure_it_is() -> None:
    accepted = [0, 1, 3, 2, 0, 3, 3, 1, 0, 2]
    assert accepted_in_rounds([100 * i for i in range(10)], accepted) == accepted
    # A round starts after the one before; a gap is the beginning of another text.
    assert accepted_in_rounds([3, 4, 5, 6, 9, 10], [1, 3, 0, 2, 1, 1]) == [1, 0, 2, 1]
    acceptance = acceptance_of([3, 2, 2, 3])
    assert acceptance.by_depth == [0.7, 0.5, 0.3]
    assert acceptance.tokens_per_round == pytest.approx(1 + np.mean(accepted))
    assert acceptance.margin == pytest.approx(1.96 * np.std(accepted) / 10**0.5)
    assert str(acceptance) == f"2.50 +- {acceptance.margin:.2f} tokens per round (10 rounds)"
    assert str(acceptance_of([0, 0])) == "not measured: there is no held-out text"


def course(folder: Path) -> list[dict[str, Any]]:
    """The measurements of the run in a folder."""
    text = (folder / "draft.gguf.train" / "eagle3" / "curves.json").read_text(encoding="utf-8")
    measurements: list[dict[str, Any]] = json.loads(text)
    return measurements


def interrupted(stage: str, n: int) -> Interrupting:
    """A reporter with a Ctrl-C at the n-th report of a stage."""
    return Interrupting(stage, n, lambda: signal.raise_signal(signal.SIGINT))


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Python's own handler, which a background job does not have."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize(("stage", "n"), [("writing text", 90), ("training", 9)])
def test_an_interrupted_run_gives_the_same_file(
    stage: str, n: int, tmp_path: Path, trained: tuple[TrainReport, Path]
) -> None:
    config = quick_config(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        train_eagle3(config, interrupted(stage, n))
    assert not config.out.exists()
    report = train_eagle3(config)
    assert report.path.read_bytes() == trained[0].path.read_bytes()
    assert train_eagle3(config).trained == report.trained, "a finished run only writes its file"


def test_more_text_extends_what_is_there(tmp_path: Path) -> None:
    config = quick_config(tmp_path, epochs=0.2, n_tokens=400)
    train_eagle3(config)
    shards = config.work_dir / "corpus"
    before = (shards / "shard-00000.tokens.npy").read_bytes()
    more = quick_config(tmp_path, epochs=0.2, n_tokens=800)
    with pytest.raises(CheckpointError, match=r"corpus_sha256=.*remove it"):
        train_eagle3(more)
    shutil.rmtree(config.work_dir / "eagle3")
    report = train_eagle3(more)
    assert report.n_answer_tokens >= 800
    assert (shards / "shard-00000.tokens.npy").read_bytes() == before


@pytest.fixture
def half_done(tmp_path: Path, trained: tuple[TrainReport, Path]) -> Path:
    """A folder with a finished run's work, to be spoilt."""
    shutil.copytree(trained[1] / "draft.gguf.train", tmp_path / "draft.gguf.train")
    return tmp_path


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"lr": 1e-4}, r"fit\.lr=0\.003, and this run has 0\.0001.*remove it"),
        ({"target": model_path("perm", n_cycles=4, n_layer=2, seed=5)}, "target_sha256="),
        ({"temperature": 0.5}, r"temperature=0\.8, and this run has 0\.5.*another --work"),
    ],
)
def test_work_of_other_settings_is_refused(
    changes: dict[str, Any], reason: str, half_done: Path
) -> None:
    with pytest.raises(CheckpointError, match=reason):
        train_eagle3(quick_config(half_done, **changes))
    path = half_done / "draft.gguf.train" / "eagle3" / "checkpoints" / "last.pt"
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(CheckpointError, match=r"last\.pt is damaged .*remove it"):
        train_eagle3(quick_config(half_done))


def test_a_loss_that_is_no_number_ends_training_and_keeps_the_checkpoint(tmp_path: Path) -> None:
    config = quick_config(tmp_path, lr=1e30, clip=1e30, warmup=0.0)
    with pytest.raises(DivergedError, match=r"diverged.*a smaller --lr"):
        train_eagle3(config)
    kept = torch.load(config.work_dir / "eagle3" / "checkpoints" / "last.pt", weights_only=True)
    weights = kept["state"]["head"].values()
    assert all(bool(torch.isfinite(weight).all()) for weight in weights)
    assert not config.out.exists()


def test_a_plain_head_has_no_key_that_stock_llama_cpp_lacks(tmp_path: Path) -> None:
    config = quick_config(tmp_path, plain=True)
    report = train_eagle3(config)
    names = read_keys(report.path, lambda name: name.startswith("eagle3."))
    assert not {"eagle3.fc_norm", "eagle3.norm_output"} & set(names)
    assert report.trained.tokens_per_round > 1.3 > report.untrained.tokens_per_round


@pytest.mark.release
def test_bfloat16_learns_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The losses follow float32's on the same chains, at every depth."""
    # Not tokens per round: a run as short as this one measures them on a dozen rounds. And all
    # chains go on: where wrong picks end some, one pick that differs makes other chains.
    monkeypatch.setattr(Kind, "missed_share", 1.0)
    courses = []
    for precision in ("bf16", "fp32"):
        folder = tmp_path / precision
        folder.mkdir()
        train_eagle3(quick_config(folder, precision=precision))
        courses.append(course(folder))
    half, single = courses
    assert [point["n_tokens"] for point in half] == [point["n_tokens"] for point in single]
    for a, b in zip(half, single, strict=True):
        # They end at 0.013: below 0.02 a tenth is chance.
        assert a["loss"] == pytest.approx(b["loss"], rel=0.1, abs=0.02)
    assert half[-1]["loss"][0] < 0.5 * half[0]["loss"][0]


@pytest.mark.parametrize(
    ("changes", "error", "reason"),
    [
        ({"target_layers": (0, 9)}, ArgumentError, "9"),
        ({"n_draft_vocab": 400}, ArgumentError, "n_draft_vocab=400"),
        ({"n_ctx": 9}, TrainError, r"every prompt of .* is longer than 1 tokens, which n_ctx=9"),
    ],
)
def test_bad_settings_have_a_reason(
    changes: dict[str, Any], error: type[Exception], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=reason):
        train_eagle3(quick_config(tmp_path, n_tokens=100, **changes))


@pytest.mark.parametrize("arch", ["qwen35", "lfm2"])
def test_a_draft_for_a_hybrid(tmp_path: Path, arch: str) -> None:
    """The target's recurrent layers write the text and its features."""
    target = model_path("hybrid_perm", arch=arch, n_cycles=4, n_layer=2)
    report = train_eagle3(quick_config(tmp_path, target=target))
    assert report.trained.tokens_per_round > 1.35 > report.untrained.tokens_per_round


@pytest.mark.usefixtures("ctrl_c")
def test_missing_features_are_read_again(tmp_path: Path) -> None:
    """Missing features are a stage of their own."""
    config = quick_config(tmp_path, epochs=3)
    with pytest.raises(KeyboardInterrupt):
        train_eagle3(config, interrupted("training", 1))
    for folder in config.work_dir.glob("features-*"):
        shutil.rmtree(folder)
    with pytest.raises(KeyboardInterrupt):
        train_eagle3(config, interrupted("reading features", 3))
    report = train_eagle3(config)
    assert "text" not in report.seconds, "of an earlier run"
