"""The target's features of its own text, stored and computed, and the draft vocabulary."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from pyllama_spec.engine import Context, Model
from pyllama_spec.errors import ArgumentError
from pyllama_spec.train.corpus.build import corpus_identity
from pyllama_spec.train.corpus.draft_vocab import (
    choose_draft_vocab,
    ending_tokens,
)
from pyllama_spec.train.corpus.features import (
    FeatureSource,
    LiveFeatures,
    store_features,
    wanted_rows,
)
from pyllama_spec.train.corpus.store import CorpusStore, TextSequence
from tests.corpus.tools import (
    LAYERS,
    N_TOP,
    TOKEN_BYTES,
    config,
    feature_store,
    make,
)
from tests.models import IM_END, model_path


def test_features_made_while_writing_are_those_of_reading(
    writer: Model, tmp_path: Path, prompts: Path
) -> None:
    """Row i is the layer input of token i, and top_ids[i] are the candidates after it."""
    settings = config(prompts)
    store = feature_store(tmp_path / "f", settings)
    corpus = make(
        writer, tmp_path / "c", settings, features=store, target_layers=LAYERS, n_top=N_TOP
    )
    source = FeatureSource(corpus, store)
    for i in range(0, len(corpus.sequences), 5):
        sequence, stored = corpus.sequences[i], source.get(i)
        rows, logits = plainly(writer, sequence)
        n, wanted = len(sequence.tokens), wanted_rows(sequence.mask)
        np.testing.assert_allclose(
            stored.rows[: n - 1].astype(np.float32), rows[: n - 1], rtol=0.02, atol=0.03
        )
        best = np.take_along_axis(logits, stored.top_ids[:, :1].astype(np.int64), 1)[:, 0]
        assert (logits.max(axis=1) - best)[wanted].max() < 0.02
        assert np.isneginf(stored.top_log_p[~wanted].astype(np.float32)).all()
        p = np.exp(stored.top_log_p[wanted].astype(np.float32)).sum(axis=1)
        assert ((p > 0) & (p < 1.01)).all()


def plainly(
    model: Model, sequence: TextSequence
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Layer inputs and logits of a text, one token at a time."""
    from pyllama_spec.engine import Batch

    rows, logits = [], []
    with Context(model, n_ctx=128, n_threads=1, target_layers=LAYERS) as context:
        batch = Batch(1)
        for i, token in enumerate(sequence.tokens.tolist()):
            batch.clear()
            batch.add(token, i, output=True)
            context.decode(batch)
            rows.append(np.concatenate([context.layer_input(k)[0] for k in LAYERS]))
            logits.append(context.logits(0).copy())
    return np.stack(rows), np.stack(logits)


def test_missing_features_are_read_from_the_text(
    writer: Model, tmp_path: Path, prompts: Path
) -> None:
    settings = config(prompts)
    for n in (150, 300, 450):  # three shards: an end of a run closes one
        corpus = make(writer, tmp_path / "c", replace(settings, n_tokens=n))
    texts = CorpusStore(tmp_path / "c", corpus_identity(settings, "target"))
    assert texts.n_shards == 3
    store = feature_store(tmp_path / "f", settings)
    opened: list[LiveFeatures] = []

    def live() -> LiveFeatures:
        opened.append(LiveFeatures(writer, LAYERS, N_TOP, 80, 1))
        return opened[-1]

    done: list[int] = []
    store_features(texts, 3, store, live, lambda n, total: done.append(n / total > 1))
    assert [store.has(i, texts.sha256(i)) for i in range(3)] == [True, True, True]
    assert store.n_bytes == sum(map(texts.n_tokens, range(3))) * TOKEN_BYTES
    assert done
    assert not any(done)
    source = FeatureSource(corpus, store)
    fresh = LiveFeatures(writer, LAYERS, N_TOP, 80, 1)
    for i, sequence in enumerate(corpus.sequences):
        a, b = source.get(i), fresh.of(sequence)
        assert (a.rows == b.rows).all()
        assert (a.top_ids == b.top_ids).all()
    assert len(opened) == 1
    fresh.close()


@pytest.mark.parametrize("arch", ["llama", "gemma3", "qwen35"])
def test_what_texts_have_in_common_is_read_once(arch: str) -> None:
    """A shared beginning, a longer and a shorter one, one inside an answer, and texts of batches.

    If a window or a recurrent state cannot be rolled back, all of it is read again.
    """
    rng = np.random.default_rng(3)
    shared, n_shared = rng.integers(3, 250, 700).astype(np.uint32), [600, 650, 650, 600, 90, 95, 3]
    texts = []
    for i, n in enumerate(n_shared):
        tokens = np.concatenate([shared[:n], rng.integers(3, 250, 20).astype(np.uint32)])
        mask = np.zeros(len(tokens), np.bool_)
        mask[n - 30 * (n == 650) :] = True
        texts.append(TextSequence(i, tokens, mask, True))
    with Model(model_path(arch)) as model:
        layers = (1, 2)
        again = LiveFeatures(model, layers, N_TOP, 720, 1)
        once = LiveFeatures(model, layers, N_TOP, 720, 1, reuses=True)
        n_read = 0
        for one in texts:
            n_read += len(one.tokens) - once._go_back(one.tokens, wanted_rows(one.mask))
            a, b = again.of(one), once.of(one)
            np.testing.assert_allclose(
                a.rows.astype(np.float32), b.rows.astype(np.float32), rtol=0.02, atol=0.05
            )
            wanted = wanted_rows(one.mask)
            assert (np.isneginf(a.top_log_p) == np.isneginf(b.top_log_p)).all()
            p, q = (np.exp(f.top_log_p[wanted].astype(np.float32)) for f in (a, b))
            assert np.abs(p - q).max() < 0.03
        again.close()
        once.close()
    n_all = sum(len(one.tokens) for one in texts)
    assert n_read < 0.7 * n_all if arch == "llama" else n_read <= n_all


# --- the draft vocabulary


def test_the_draft_vocabulary_is_what_answers_are_made_of(writer: Model) -> None:
    def text(ids: list[int], n_prompt: int) -> TextSequence:
        mask = np.arange(len(ids)) >= n_prompt
        return TextSequence(0, np.array(ids, np.uint32), mask, True)

    sequences = [text([7, 7, 7, 7, 10, 10, 11, 12], 4), text([7, 10, 11, 13], 1)]
    always = ending_tokens(writer.vocab)
    assert IM_END in always
    vocab = choose_draft_vocab(sequences, 320, len(always) + 2, always)
    assert set(vocab.d2t) == {10, 11, *always}
    assert vocab.coverage == pytest.approx(5 / 7)
    assert (vocab.t2d[vocab.d2t] == np.arange(len(vocab.d2t))).all()
    assert (vocab.t2d >= 0).sum() == len(vocab.d2t)
    assert (np.diff(vocab.d2t) > 0).all()
    with pytest.raises(ArgumentError, match="n_draft_vocab=321"):
        choose_draft_vocab(sequences, 320, 321, always)


def _zipf(n_vocab: int, n_texts: int, seed: int = 0) -> list[TextSequence]:
    draw = np.random.default_rng(seed)
    chances = 1.0 / np.arange(1, n_vocab + 1)
    ids = draw.choice(n_vocab, (n_texts, 500), p=chances / chances.sum()).astype(np.uint32)
    return [TextSequence(i, row, np.arange(500) >= 50, True) for i, row in enumerate(ids)]


def test_a_draft_vocabulary_covers_most_of_the_text() -> None:
    texts = _zipf(20_000, 40)
    vocab = choose_draft_vocab(texts, 20_000, None, [19_999])
    assert 1024 < len(vocab.d2t) < 20_000 and len(vocab.d2t) % 256 == 0
    assert 0.97 <= vocab.coverage < 0.98
    assert len(choose_draft_vocab(texts, 20_000, None, range(15_000)).d2t) >= 15_000
    small = [replace(text, tokens=text.tokens % 300) for text in texts]
    assert len(choose_draft_vocab(small, 320, None, [3]).d2t) == 320
