"""The batches of training, their order, and the sequences that are held out."""

from __future__ import annotations

from collections import Counter
from itertools import chain

import numpy as np
import pytest
import torch

from pyllama_spec.train.corpus.features import FeatureSource
from pyllama_spec.train.corpus.selection import plan, sample, split
from pyllama_spec.train.corpus.store import Corpus, TextSequence
from pyllama_spec.train.run.texts import repeats, with_fewer_lookups
from tests.corpus.tools import (
    LAYERS,
    N_TOP,
    config,
    feature_store,
    make,
    open_writer,
    write_prompts,
)
from tests.train.chains import random_texts

LENGTHS = np.random.default_rng(3).integers(5, 90, 70).tolist()


def prompt_of(sequence: TextSequence) -> tuple[int, ...]:
    return tuple(sequence.tokens[: int(np.argmax(sequence.mask))].tolist())


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> tuple[Corpus, FeatureSource]:
    """A corpus in which every prompt is answered several times, and its features."""
    folder = tmp_path_factory.mktemp("text")
    settings = config(write_prompts(folder), n_tokens=1500)
    store = feature_store(folder / "f", settings)
    with open_writer() as model:
        corpus = make(
            model, folder / "c", settings, features=store, target_layers=LAYERS, n_top=N_TOP
        )
    return corpus, FeatureSource(corpus, store)


def test_an_epoch_has_every_sequence_once_and_an_order_of_its_own() -> None:
    first, second = plan(LENGTHS, 256, 1, 0), plan(LENGTHS, 256, 1, 1)
    for batches in (first, second):
        assert Counter(chain(*batches)) == Counter(range(len(LENGTHS)))
        assert all(sum(LENGTHS[i] for i in batch) <= 256 for batch in batches)
    assert first == plan(LENGTHS, 256, 1, 0)
    assert first not in (second, plan(LENGTHS, 256, 2, 0))
    assert [1] in plan([10, 500, 10], 64, 1, 0), "a longer one has a batch of its own"


def test_no_prompt_is_learned_from_and_measured_on(text: tuple[Corpus, FeatureSource]) -> None:
    corpus, _ = text
    train, held = split(corpus, 0.3, 10_000)
    assert train
    assert held
    learned = {prompt_of(corpus.sequences[i]) for i in train}
    assert not learned & {prompt_of(corpus.sequences[i]) for i in held}
    assert all(corpus.sequences[i].is_greedy for i in held)
    # What is neither is a sampled answer to a prompt that is held out.
    for i in set(range(len(corpus.sequences))) - set(train) - set(held):
        assert not corpus.sequences[i].is_greedy
        assert prompt_of(corpus.sequences[i]) not in learned


def test_a_repeated_ngram_occurred_before_as_a_whole() -> None:
    rng = np.random.default_rng(4)
    for n_tokens in (0, 3, 5, 200):
        tokens = rng.integers(0, 3, n_tokens).astype(np.uint32)
        ids = tokens.tolist()
        before = [
            i >= 4 and any(ids[j - 4 : j + 1] == ids[i - 4 : i + 1] for j in range(4, i))
            for i in range(n_tokens)
        ]
        assert repeats(tokens, 5).tolist() == before
    assert 20 < sum(before) < 180


def test_chains_that_would_be_copied_are_thinned_out() -> None:
    texts = random_texts([300, 300], 4)
    texts.lookup_hits = torch.rand(600, generator=torch.Generator().manual_seed(1)) < 0.4
    starts = texts.starts
    is_copied = texts.lookup_hits[starts + 1]
    generator = torch.Generator().manual_seed(2)
    assert with_fewer_lookups(texts, 0.0, generator).starts.tolist() == starts[~is_copied].tolist()
    assert with_fewer_lookups(texts, 1.0, generator).starts.tolist() == starts.tolist()
    kept = set(with_fewer_lookups(texts, 0.3, generator).starts.tolist())
    assert set(starts[~is_copied].tolist()) <= kept
    assert 0.2 < sum(s in kept for s in starts[is_copied].tolist()) / int(is_copied.sum()) < 0.4
    # A batch of nothing but a loop is learned from as it is.
    texts.lookup_hits[:] = True
    assert with_fewer_lookups(texts, 0.0, generator).starts.tolist() == starts.tolist()


def test_a_sample_is_the_first_layer_and_the_size_of_all(
    text: tuple[Corpus, FeatureSource],
) -> None:
    corpus, source = text
    indices = [4, 0, 7]
    seen = sample(indices, corpus, source.get, len(LAYERS))
    rows = np.concatenate([source.get(i).rows[:-1].astype(np.float64) for i in indices])
    layers = rows.reshape(len(rows), len(LAYERS), -1)
    assert np.array_equal(seen.rows, layers[:, 0])
    tokens = np.concatenate([corpus.sequences[i].tokens[:-1] for i in indices])
    assert seen.tokens.tolist() == tokens.tolist()
    np.testing.assert_allclose(seen.rms, np.sqrt((layers**2).mean(axis=(0, 2))), rtol=1e-5)
