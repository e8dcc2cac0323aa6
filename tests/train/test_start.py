"""A run that starts from an earlier draft."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pyllama_spec import ArgumentError
from pyllama_spec.engine import Model
from pyllama_spec.gguf.reader import read_keys
from pyllama_spec.train import (
    HeadConfig,
    TrainError,
    train_eagle3,
)
from pyllama_spec.train.kinds.eagle3 import Eagle3Kind
from pyllama_spec.train.run.init_draft import InitDraft
from pyllama_spec.train.run.pipeline import TrainReport
from tests.models import model_path
from tests.train.tools import perm, quick_config


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> TrainReport:
    """A draft that has learned something, and not all."""
    return train_eagle3(quick_config(tmp_path_factory.mktemp("first"), epochs=8))


def _read(path: Path, target: Model) -> InitDraft:
    return Eagle3Kind(quick_config(path.parent), target).read_draft(path)


def _again(folder: Path, first: TrainReport, **changes: object) -> TrainReport:
    folder.mkdir(exist_ok=True)
    settings = {"init": first.path, "epochs": 4, "seed": 2, **changes}
    return train_eagle3(quick_config(folder, **settings))


def test_training_continues_with_the_weights_of_a_draft(first: TrainReport, tmp_path: Path) -> None:
    report = _again(tmp_path, first)
    assert 1.5 < first.trained.tokens_per_round < 4
    # Measured on a dozen rounds of other text: nearer to where the first run ended than to none.
    ends = first.untrained.tokens_per_round, first.trained.tokens_per_round
    assert report.untrained.tokens_per_round > sum(ends) / 2
    assert report.trained.tokens_per_round > report.untrained.tokens_per_round
    keys = read_keys(report.path, lambda name: name.startswith("pyllama_spec.train."))
    values = {name.removeprefix("pyllama_spec.train."): key.value for name, key in keys.items()}
    assert values["corpus_tokens_before"] == first.n_answer_tokens
    # It takes a tenth of a step: what stands there is what was given.
    near = _again(tmp_path / "near", first, epochs=0.1, lr=1e-9)
    with Model(perm()) as target:
        start, end, more = (_read(r.path, target) for r in (first, near, report))
    assert values["init_sha256"].decode() == start.sha256
    assert more.n_text == first.n_answer_tokens + report.n_answer_tokens
    assert start.shape == end.shape
    assert np.array_equal(start.d2t, end.d2t)
    for name, tensor in start.tensors.items():
        assert np.allclose(tensor, end.tensors[name], atol=1e-6), name


def test_a_draft_that_cannot_be_continued_is_refused(first: TrainReport, tmp_path: Path) -> None:
    config = quick_config(tmp_path, init=first.path)
    for init, reason in (
        (perm(), "is a llama, not a draft of kind eagle3"),
        (model_path("eagle3", n_vocab=512), "a vocabulary of 512, this one has 320"),
        (model_path("eagle3", n_embd=320, target_n_embd=320), "is not a head as train makes them"),
        (tmp_path / "none.gguf", "none.gguf"),
    ):
        with pytest.raises(TrainError if init.exists() else Exception, match=reason):
            train_eagle3(replace(config, init=init))
    with pytest.raises(ArgumentError, match="omit the options of the head"):
        replace(config, head=HeadConfig(n_ff=64))
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(first.path.read_bytes()[:-1000])
    with pytest.raises(Exception, match=r"cut\.gguf"):
        train_eagle3(replace(config, init=cut))
    assert not config.work_dir.exists(), "nothing is begun"
