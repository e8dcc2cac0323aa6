"""From a GGUF to a DFlash draft, in seconds: learning, interruptions, refusals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pyllama_spec import Llama
from pyllama_spec.train import train_dflash, train_eagle3
from pyllama_spec.train.run.pipeline import TrainReport
from tests.train.tools import perm, quick_block_config, quick_config


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainReport, Path]:
    """A whole run without interruption, and its folder."""
    folder = tmp_path_factory.mktemp("trained")
    return train_dflash(quick_block_config(folder)), folder


def test_a_trained_draft_is_better_than_an_untrained_one(trained: tuple[TrainReport, Path]) -> None:
    report, folder = trained
    assert report.untrained.tokens_per_round < 1.3
    assert report.trained.tokens_per_round > 1.4
    assert report.trained.by_depth == sorted(report.trained.by_depth, reverse=True)
    assert len(report.trained.by_depth) == 4
    own = folder / "draft.gguf.train" / "dflash"
    points = json.loads((own / "curves.json").read_text(encoding="utf-8"))
    assert points[-1]["loss"][0] < points[0]["loss"][0]
    assert (own / "checkpoints" / "best.pt").exists()


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
