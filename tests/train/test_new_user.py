"""A base model that writes its own text: Ctrl-C loses no features."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyllama_spec.engine import Model
from pyllama_spec.train import Eagle3TrainConfig, train_eagle3
from pyllama_spec.train.corpus.build import corpus_identity
from pyllama_spec.train.corpus.store import CorpusStore, load_corpus
from pyllama_spec.train.files import hash_file
from tests.models import model_path
from tests.train.tools import Interrupting, quick_config


@pytest.fixture(autouse=True)
def ctrl_c() -> Iterator[None]:
    """Python's own handler, which a background job does not have."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def settings(folder: Path) -> Eagle3TrainConfig:
    target = model_path(
        "llama", suppress_special=False, output_scale=3.0, chat_template=None
    )  # fmt: skip
    return quick_config(
        folder, target=target, prompts=None, n_tokens=500, n_ctx=96, max_user=20, min_user=2,
        epochs=3, target_layers=(1, 2, 3), temperature=1.0, greedy_share=0.5,
    )  # fmt: skip


def sequences(config: Eagle3TrainConfig) -> list[bytes]:
    """The written text of each sequence, prompts included."""
    store = CorpusStore(
        config.work_dir / "corpus", corpus_identity(config.corpus, hash_file(config.target))
    )
    with Model(config.target) as model:
        return [
            model.vocab.detokenize(one.tokens.tolist(), special=True)
            for one in load_corpus(store, store.n_answer).sequences
        ]


def interrupt(config: Eagle3TrainConfig, stage: str, n: int) -> list[str]:
    """Ctrl-C when a stage reports for the n-th time; what was said until then."""
    reporter = Interrupting(stage, n, lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        train_eagle3(config, reporter)
    return reporter.lines


def test_features_that_were_read_are_not_read_again(tmp_path: Path) -> None:
    """Missing features, for example of other layers, are a stage of their own."""
    config = settings(tmp_path)
    interrupt(config, "training", 1)
    shutil.rmtree(config.work_dir / "features")
    notes: list[str] = []
    for n in (3, 2):
        reporter = Interrupting("reading features", n, lambda: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            train_eagle3(config, reporter)
        notes.append(reporter.last)
    done = [int(note.split()[0]) for note in notes]
    assert 0 < done[0] < done[1], "the second run begins behind the first"
    n_sequences = len(sequences(config))
    reporter = Interrupting("reading features", 10**9, lambda: None)
    report = train_eagle3(config, reporter)
    assert reporter.n_told == n_sequences - 3 - 2
    assert report.trained.n_rounds > 10
    assert "text" not in report.seconds
