"""From a GGUF to a draft, in seconds: learning, interruptions, refusals."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pyllama_spec import Llama
from pyllama_spec.gguf.reader import read_keys
from pyllama_spec.train import CheckpointError, DivergedError, train_eagle3
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


@pytest.fixture
def half_done(tmp_path: Path, trained: tuple[TrainReport, Path]) -> Path:
    shutil.copytree(trained[1] / "draft.gguf.train", tmp_path / "draft.gguf.train")
    return tmp_path


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"target": model_path("perm", n_cycles=4, n_layer=2, seed=5)}, "target_sha256="),
        ({"temperature": 0.5}, r"temperature=0\.8, and this run has 0\.5.*another --work"),
    ],
)
def test_other_text_is_refused(changes: dict[str, Any], reason: str, half_done: Path) -> None:
    with pytest.raises(CheckpointError, match=reason):
        train_eagle3(quick_config(half_done, **changes))


def test_a_damaged_checkpoint_is_refused(half_done: Path) -> None:
    half_done.joinpath("draft.gguf.train/eagle3/checkpoints/last.pt").write_bytes(b"PK")
    with pytest.raises(CheckpointError, match=r"remove .*checkpoints to begin"):
        train_eagle3(quick_config(half_done))


@pytest.mark.usefixtures("ctrl_c")
def test_only_a_finished_fit_gives_way_to_another(tmp_path: Path) -> None:
    first, more = quick_config(tmp_path), quick_config(tmp_path, n_tokens=1_000)
    with pytest.raises(KeyboardInterrupt):
        train_eagle3(first, interrupted("training", 9))
    with pytest.raises(CheckpointError, match="corpus_sha256="):
        train_eagle3(more)
    assert train_eagle3(first).n_answer_tokens < train_eagle3(more).n_answer_tokens


def test_a_loss_that_is_no_number_ends_training_and_keeps_the_checkpoint(tmp_path: Path) -> None:
    config = quick_config(tmp_path, lr=1e30, clip=1e30, warmup=0.0)
    with pytest.raises(DivergedError, match=r"diverged.*a smaller --lr"):
        train_eagle3(config)
    kept = torch.load(config.work_dir / "eagle3" / "checkpoints" / "last.pt", weights_only=True)
    assert all(bool(torch.isfinite(weight).all()) for weight in kept["state"]["head"].values())
    assert not config.out.exists()


def test_a_plain_head_has_no_key_that_stock_llama_cpp_lacks(tmp_path: Path) -> None:
    report = train_eagle3(quick_config(tmp_path, plain=True))
    names = read_keys(report.path, lambda name: name.startswith("eagle3."))
    assert not {"eagle3.fc_norm", "eagle3.norm_output"} & set(names)
    assert report.trained.tokens_per_round > 1.3 > report.untrained.tokens_per_round


@pytest.mark.parametrize("arch", ["qwen35", "lfm2"])
def test_a_draft_for_a_hybrid(tmp_path: Path, arch: str) -> None:
    """The target's recurrent layers write the text and its features."""
    target = model_path("hybrid_perm", arch=arch, n_cycles=4, n_layer=2)
    report = train_eagle3(quick_config(tmp_path, target=target))
    assert report.trained.tokens_per_round > 1.35 > report.untrained.tokens_per_round
