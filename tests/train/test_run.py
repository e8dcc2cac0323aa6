"""From a GGUF to a draft, in seconds: learning, interruptions, refusals."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pyllama_spec import ArgumentError, Llama
from pyllama_spec.drafters.ngram_table import NgramTable
from pyllama_spec.engine import Model
from pyllama_spec.gguf.reader import read_keys
from pyllama_spec.train import CheckpointError, DivergedError, TrainError, train_eagle3
from pyllama_spec.train.run.objective import acceptance_of, accepted_in_rounds
from pyllama_spec.train.run.pipeline import TrainReport
from pyllama_spec.train.run.target_weights import read_weights
from tests.models import model_path, perm_next
from tests.parity.numpy_model import TensorFile
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
    command = values["command"].decode()
    assert command.startswith("pyllama-spec train eagle3 -m perm-")
    assert "--prompts prompts.jsonl" in command
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


def test_the_course_is_written(trained: tuple[TrainReport, Path]) -> None:
    report, folder = trained
    last = course(folder)[-1]["tokens_per_round"]
    assert last == pytest.approx(report.trained.tokens_per_round, abs=0.5)


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
    with pytest.raises(CheckpointError, match=r"corpus_sha256=.*--restart"):
        train_eagle3(more)
    report = train_eagle3(replace(more, restart=True))
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
        ({"lr": 1e-4}, r"fit\.lr=0\.003, and this run has 0\.0001.*--restart"),
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
    with pytest.raises(CheckpointError, match=r"last\.pt is damaged .*--restart"):
        train_eagle3(quick_config(half_done))


def test_a_loss_that_is_no_number_ends_training_and_keeps_the_checkpoint(tmp_path: Path) -> None:
    config = quick_config(tmp_path, lr=1e30, clip=1e30, warmup=0.0)
    with pytest.raises(DivergedError, match=r"diverged.*--restart and a smaller --lr"):
        train_eagle3(config)
    kept = torch.load(config.work_dir / "eagle3" / "checkpoints" / "last.pt", weights_only=True)
    weights = kept["state"]["head"].values()
    assert all(bool(torch.isfinite(weight).all()) for weight in weights)
    assert not config.out.exists()


def test_without_room_on_the_disk_features_are_computed_as_training_goes(
    tmp_path: Path, trained: tuple[TrainReport, Path]
) -> None:
    config = quick_config(tmp_path, max_disk_bytes=0)
    report = train_eagle3(config)
    assert not list((config.work_dir / "features").glob("*.npy"))
    # The same text and almost the same rows: only how many are computed at once differs.
    assert report.trained.tokens_per_round == pytest.approx(
        trained[0].trained.tokens_per_round, abs=0.6
    )


def test_a_plain_head_has_no_key_that_stock_llama_cpp_lacks(tmp_path: Path) -> None:
    config = quick_config(tmp_path, plain=True)
    report = train_eagle3(config)
    names = read_keys(report.path, lambda name: name.startswith("eagle3."))
    assert not {"eagle3.fc_norm", "eagle3.norm_output"} & set(names)
    assert Model(report.path).ngram_arrays() is None
    assert report.trained.tokens_per_round > 1.3 > report.untrained.tokens_per_round


def test_the_output_matrix_is_trained_where_asked(
    tmp_path: Path, trained: tuple[TrainReport, Path]
) -> None:
    with Model(perm()) as model:
        weights = read_weights(perm(), model.info)
    assert weights.output_norm is not None
    target = weights.output * weights.output_norm
    target -= target.mean(0)

    def least_cosine(draft: Path) -> float:
        rows = TensorFile(draft).tensors["output.weight"]
        norms = np.linalg.norm(rows, axis=1) * np.linalg.norm(target, axis=1)
        return float(((rows * target).sum(1) / np.maximum(norms, 1e-9)).min())

    asked = train_eagle3(quick_config(tmp_path, train_output=True))
    assert least_cosine(trained[0].path) > 0.9999
    assert least_cosine(asked.path) < 0.999


@pytest.mark.release
def test_bfloat16_learns_as_well(tmp_path: Path) -> None:
    """The losses follow float32's on the same chains, at every depth."""
    # Not tokens per round: a run as short as this one measures them on a dozen rounds. And all
    # chains go on: where wrong picks end some, one pick that differs makes other chains.
    courses = []
    for precision in ("bf16", "fp32"):
        folder = tmp_path / precision
        folder.mkdir()
        train_eagle3(quick_config(folder, precision=precision, missed_share=1.0))
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
        ({"n_head": 3}, ArgumentError, "n_head"),
        ({"n_draft_vocab": 400}, ArgumentError, "n_draft_vocab=400"),
        ({"n_ctx": 9}, TrainError, r"every prompt of .* is longer than 1 tokens, which n_ctx=9"),
    ],
)
def test_bad_settings_have_a_reason(
    changes: dict[str, Any], error: type[Exception], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=reason):
        train_eagle3(quick_config(tmp_path, n_tokens=100, **changes))


def test_the_file_has_a_table_of_what_follows(
    trained: tuple[TrainReport, Path], tmp_path: Path
) -> None:
    report, folder = trained
    arrays = Model(report.path).ngram_arrays()
    assert arrays is not None
    table = NgramTable(*arrays, n_vocab=320)
    following = perm_next()
    said = {t: table.find((t,)) for t in range(320)}
    known = {t: pick for t, pick in said.items() if pick is not None and pick[1] > 0.6}
    assert len(known) > 20
    assert all(token == following[t] for t, (token, _) in known.items())
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    config = quick_config(tmp_path)
    few = train_eagle3(replace(config, n_ngrams=7)).path
    assert len((Model(few).ngram_arrays() or ((),))[0]) == 7
    none = train_eagle3(replace(config, n_ngrams=0)).path
    assert Model(none).ngram_arrays() is None


@pytest.mark.parametrize("arch", ["qwen35", "lfm2"])
def test_a_draft_for_a_hybrid(tmp_path: Path, arch: str) -> None:
    """The target's recurrent layers write the text and its features."""
    target = model_path("hybrid_perm", arch=arch, n_cycles=4, n_layer=2)
    report = train_eagle3(quick_config(tmp_path, target=target))
    assert report.trained.tokens_per_round > 1.35 > report.untrained.tokens_per_round


@pytest.mark.usefixtures("ctrl_c")
def test_missing_features_are_read_again(tmp_path: Path) -> None:
    """Of a base model's own text; missing features are a stage of their own."""
    target = model_path("llama", suppress_special=False, output_scale=3.0, chat_template=None)
    config = quick_config(
        tmp_path, target=target, prompts=None, n_tokens=500, n_ctx=96, max_user=20, min_user=2,
        epochs=3, target_layers=(1, 2, 3), temperature=1.0, greedy_share=0.5,
    )  # fmt: skip
    with pytest.raises(KeyboardInterrupt):
        train_eagle3(config, interrupted("training", 1))
    shutil.rmtree(config.work_dir / "features")
    with pytest.raises(KeyboardInterrupt):
        train_eagle3(config, interrupted("reading features", 3))
    report = train_eagle3(config)
    assert report.trained.n_rounds > 10
    assert "text" not in report.seconds, "of an earlier run"
