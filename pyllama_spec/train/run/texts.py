"""The corpus for PyTorch: whole sequences, and the positions at which drafts start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyllama_spec.drafters.lookup_first import MIN_NGRAM
from pyllama_spec.train.corpus.draft_vocab import DraftVocab
from pyllama_spec.train.corpus.features import Features
from pyllama_spec.train.corpus.store import Corpus


@dataclass(slots=True)
class Texts:
    """Some sequences, concatenated.

    n is the total number of tokens; a sequence of m tokens has m - 1 pairs, and a last token
    without one.
    """

    tokens: Tensor  # [n] int64 ids of the target
    positions: Tensor  # [n] int64, from 0 in each sequence
    lengths: list[int]  # tokens of each sequence
    features: Tensor  # [n, n_layers * n_embd] float32
    # [n_starts] int64: where drafts begin, ascending: P0 for a draft that knows the features of
    # x[0] .. x[P0] and the token x[P0+1], and predicts x[P0+2] first
    starts: Tensor
    learned: Tensor  # [n] bool: whether to predict the token
    target_ids: Tensor  # [n, k] int64, draft ids of the likeliest next tokens
    # [n, k] float32, their probabilities; 0 for those outside the draft vocabulary
    target_p: Tensor
    in_vocab: Tensor  # [n] bool: whether the draft vocabulary has the token
    # [n] bool: whether decoding would copy after this token, since it and those before it occurred
    # earlier in the text
    lookup_hits: Tensor

    def ends(self) -> tuple[Tensor, Tensor]:
        """The end of each sequence, [n_sequences], and the sequence of each token, [n]."""
        device = self.tokens.device
        lengths = torch.tensor(self.lengths, device=device)
        owner = torch.repeat_interleave(torch.arange(len(lengths), device=device), lengths)
        return lengths.cumsum(0), owner


def load(
    indices: Sequence[int],
    corpus: Corpus,
    source: Features,
    vocab: DraftVocab,
    device: str,
) -> Texts:
    """Loads some sequences of the corpus with their features."""
    sequences = [corpus.sequences[i] for i in indices]
    features = [source(i) for i in indices]
    tokens = np.concatenate([s.tokens for s in sequences]).astype(np.int64)
    learned = np.concatenate([s.mask for s in sequences])
    ids = vocab.t2d[np.concatenate([f.top_ids for f in features]).astype(np.int64)]
    log_p = np.concatenate([f.top_log_p for f in features]).astype(np.float32)
    p = np.where(ids >= 0, np.exp(log_p), np.float32(0))
    lengths = [len(s.tokens) for s in sequences]
    starts, at = [], 0
    for sequence in sequences:
        # A draft from P0 first predicts x[P0+2].
        starts.append(at + np.flatnonzero(sequence.mask[2:]))
        at += len(sequence.tokens)

    def to(array: npt.NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    return Texts(
        tokens=to(tokens),
        positions=to(np.concatenate([np.arange(n) for n in lengths])),
        lengths=lengths,
        features=to(np.concatenate([f.rows for f in features])).float(),
        starts=to(np.concatenate(starts)),
        learned=to(learned),
        target_ids=to(np.maximum(ids, 0)),
        target_p=to(p),
        in_vocab=to(vocab.t2d[tokens] >= 0),
        lookup_hits=to(np.concatenate([repeats(s.tokens, MIN_NGRAM) for s in sequences])),
    )


def repeats(tokens: npt.NDArray[np.uint32], n: int) -> npt.NDArray[np.bool_]:
    """Whether the n tokens up to each position occurred before: [len(tokens)] bool."""
    out = np.zeros(len(tokens), dtype=np.bool_)
    if len(tokens) >= n:
        windows = np.lib.stride_tricks.sliding_window_view(tokens, n)
        _, first, which = np.unique(windows, axis=0, return_index=True, return_inverse=True)
        out[n - 1 :] = first[which.reshape(-1)] < np.arange(len(windows))
    return out


def with_fewer_lookups(texts: Texts, share: float, generator: torch.Generator) -> Texts:
    """Drops drafts that start where decoding would copy, except a share; none if all do."""
    # A draft from P0 knows x[P0+1].
    is_asked = ~texts.lookup_hits[texts.starts + 1]
    drawn = torch.rand(len(texts.starts), generator=generator).to(is_asked.device) < share
    starts = texts.starts[is_asked | drawn]
    return replace(texts, starts=starts) if len(starts) else texts
