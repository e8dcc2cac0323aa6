"""A base model, and one with its own template: Ctrl-C in every stage loses nothing."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pyllama_spec.engine import Model
from pyllama_spec.train import Eagle3TrainConfig, train_eagle3
from pyllama_spec.train.corpus.build import corpus_identity
from pyllama_spec.train.corpus.store import CorpusStore, load_corpus
from pyllama_spec.train.files import hash_file
from tests.models import model_path
from tests.train.tools import Interrupting, quick_config

# No model of ours has it; a system message goes into the first user turn, as in Llama 2.
INST = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% elif m.role == 'assistant' %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
)


@pytest.fixture(autouse=True)
def ctrl_c() -> Iterator[None]:
    """Python's own handler, which a background job does not have."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def settings(folder: Path, template: str | None) -> Eagle3TrainConfig:
    folder.mkdir(exist_ok=True)
    target = model_path(
        "llama", suppress_special=False, output_scale=3.0, chat_template=template
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


@pytest.mark.parametrize("template", [None, INST], ids=["base", "inst"])
def test_nothing_finished_is_lost_in_any_stage(template: str | None, tmp_path: Path) -> None:
    whole = settings(tmp_path / "whole", template)
    train_eagle3(whole)
    config = settings(tmp_path / "parts", template)
    said = interrupt(config, "writing text", 40)
    assert any("documents, not answers" in line for line in said) is (template is None)
    begun = sequences(config)
    # Nothing was written so far that is not in the end's text; and all of that comes back.
    interrupt(config, "writing text", 25)
    assert sequences(config)[: len(begun)] == begun
    interrupt(config, "training", 2)
    written = sequences(config)
    assert written == sequences(whole)
    said = interrupt(config, "training", 3)
    assert any("continuing at step" in line for line in said)
    report = train_eagle3(config)
    assert report.path.read_bytes() == whole.out.read_bytes()
    assert "text" not in report.seconds, "of an earlier run"
    assert sequences(config) == written


@pytest.mark.parametrize("template", [None, INST], ids=["base", "inst"])
def test_features_that_were_read_are_not_read_again(template: str | None, tmp_path: Path) -> None:
    """Missing features, for example of other layers, are a stage of their own."""
    config = settings(tmp_path, template)
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


@pytest.mark.parametrize("template", [None, INST], ids=["base", "inst"])
def test_the_text_is_the_models_own(template: str | None, tmp_path: Path) -> None:
    """No text has ChatML, which neither model has seen."""
    config = settings(tmp_path, template)
    interrupt(config, "training", 1)
    texts = sequences(config)
    assert len(texts) > 4
    for text in texts:
        assert b"assistant" not in text
        assert (b"[INST] " in text and b" [/INST]" in text) is (template is not None)
    assert np.unique(texts).size == len(texts)
