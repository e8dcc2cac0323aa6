"""Batches in an order by seed, and held-out sequences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pyllama_spec.train.corpus.features import Features
from pyllama_spec.train.corpus.quality import fingerprint
from pyllama_spec.train.corpus.store import Corpus, TextSequence

# Prompts are held out by a hash, so that two answers to one prompt are on the same side.
_BUCKETS = 10_000


def _bucket(sequence: TextSequence) -> int:
    prompt = sequence.tokens[: int(np.argmax(sequence.mask))]
    return int.from_bytes(fingerprint(prompt.tolist()), "little") % _BUCKETS


def split(corpus: Corpus, share: float, max_tokens: int) -> tuple[list[int], list[int]]:
    """Splits sequences into training ones and greedy held-out ones of about max_tokens tokens.

    Sampled answers to held-out prompts are left out of both parts. At least one prompt is held out;
    a corpus with a single prompt is measured on itself.
    """
    buckets = [_bucket(sequence) for sequence in corpus.sequences]
    pairs = list(zip(buckets, corpus.sequences, strict=True))
    least = min((bucket for bucket, s in pairs if s.is_greedy), default=-1)
    limit = max(share * _BUCKETS, least + 1) if share else 0
    train = [i for i, bucket in enumerate(buckets) if bucket >= limit]
    held: list[int] = []
    n = 0
    for i, (bucket, sequence) in enumerate(pairs):
        is_wanted = bucket < limit or not train
        if is_wanted and sequence.is_greedy and n < max_tokens:
            held.append(i)
            n += len(sequence.tokens)
    return train or list(range(len(pairs))), held


def plan(lengths: Sequence[int], batch_tokens: int, seed: int, epoch: int) -> list[list[int]]:
    """The batches of an epoch: shuffled indices into `lengths`, up to batch_tokens tokens each.

    A longer sequence gets its own batch; each epoch has its own order.
    """
    order = np.random.default_rng([seed, epoch]).permutation(len(lengths)).tolist()
    batches: list[list[int]] = [[]]
    n = 0
    for i in order:
        if batches[-1] and n + lengths[i] > batch_tokens:
            batches.append([])
            n = 0
        batches[-1].append(i)
        n += lengths[i]
    return batches


@dataclass(frozen=True, slots=True)
class Sample:
    """The statistics that initialise a head."""

    rows: npt.NDArray[np.float32]  # [n, n_embd] float32, the first layer input at some tokens
    tokens: npt.NDArray[np.int64]  # [n] int64, these tokens
    last: npt.NDArray[np.float32]  # [n, n_embd] float32, the last layer input there
    # [n_layers] float32, the root mean square of each layer input over these tokens
    rms: npt.NDArray[np.float32]
    # [n_layers * n_embd] float32, the same for each channel of all layer inputs
    channel_rms: npt.NDArray[np.float32]


def sample(indices: Sequence[int], corpus: Corpus, source: Features, n_layers: int) -> Sample:
    """Samples sequences; of the middle layer inputs it keeps only the size."""
    rows, tokens, last = [], [], []
    squares: npt.NDArray[np.float64] | float = 0.0
    n = 0
    for i in indices:
        # The last token of a sequence may have no row.
        layers = source(i).rows[:-1].reshape(len(corpus.sequences[i].tokens) - 1, n_layers, -1)
        squares = squares + np.einsum("nld,nld->ld", layers, layers, dtype=np.float64)
        n += layers.shape[0]
        rows.append(layers[:, 0].astype(np.float32))
        last.append(layers[:, -1].astype(np.float32))
        tokens.append(corpus.sequences[i].tokens[:-1].astype(np.int64))
    mean = np.asarray(squares) / n
    return Sample(
        np.concatenate(rows),
        np.concatenate(tokens),
        np.concatenate(last),
        np.sqrt(mean.mean(1)).astype(np.float32),
        np.sqrt(mean).reshape(-1).astype(np.float32),
    )


def token_counts(corpus: Corpus, indices: Sequence[int], n_vocab: int) -> npt.NDArray[np.int64]:
    """The number of occurrences of each token in some sequences: [n_vocab] int64."""
    tokens = np.concatenate([corpus.sequences[i].tokens for i in indices]).astype(np.int64)
    return np.bincount(tokens, minlength=n_vocab).astype(np.int64)


def batches_from(
    lengths: Sequence[int], batch_tokens: int, seed: int, n_epochs: float, first: int
) -> Iterator[list[int]]:
    """The batches of a whole run from number `first` on; a partial epoch is its beginning."""
    number, epoch = 0, 0
    epochs_left = n_epochs
    while epochs_left > 0:
        batches = plan(lengths, batch_tokens, seed, epoch)
        count = len(batches) if epochs_left >= 1 else max(round(epochs_left * len(batches)), 1)
        for batch in batches[:count]:
            if number >= first:
                yield batch
            number += 1
        epoch, epochs_left = epoch + 1, epochs_left - 1


def count_batches(lengths: Sequence[int], batch_tokens: int, seed: int, n_epochs: float) -> int:
    """The number of batches of batches_from() from the first on."""
    return sum(1 for _ in batches_from(lengths, batch_tokens, seed, n_epochs, 0))
