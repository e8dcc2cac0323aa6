"""Helpers for tests of heads: random texts, and the logits of all steps of chains on them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch

from pyllama_spec.train.run.head import DraftHead
from pyllama_spec.train.run.objective import Step
from pyllama_spec.train.run.texts import Texts

Floats = npt.NDArray[np.float32]


def random_texts(lengths: list[int], n_features: int, seed: int = 5) -> Texts:
    """Sequences of ordinary tokens with random rows; every token but the first two is learned."""
    rng, n = np.random.default_rng(seed), sum(lengths)
    learned = np.concatenate([np.arange(m) >= 2 for m in lengths])
    starts = np.flatnonzero(np.append(learned[2:], [False, False]) & _has_room(lengths))
    return Texts(
        tokens=torch.from_numpy(rng.integers(0, 256, n)),
        positions=torch.from_numpy(np.concatenate([np.arange(m) for m in lengths])),
        lengths=lengths,
        features=torch.from_numpy(rng.standard_normal((n, n_features)).astype(np.float32)),
        starts=torch.from_numpy(starts),
        learned=torch.from_numpy(learned),
        target_ids=torch.zeros(n, 1, dtype=torch.int64),
        target_p=torch.zeros(n, 1),
        in_vocab=torch.ones(n, dtype=torch.bool),
        lookup_hits=torch.zeros(n, dtype=torch.bool),
    )


def repeated_text(half: npt.NDArray[np.int64], features: Floats) -> Texts:
    """A text that says its first half again, with its rows; drafts begin in the second half."""
    ids, n = np.concatenate((half, half)), 2 * len(half)
    texts = random_texts([n], features.shape[1])
    texts.tokens, texts.features = torch.from_numpy(ids), torch.from_numpy(features)
    texts.starts, texts.learned = torch.arange(n // 2, n - 2), torch.ones(n, dtype=torch.bool)
    return texts


def _has_room(lengths: list[int]) -> npt.NDArray[np.bool_]:
    return np.concatenate([np.arange(m) < m - 2 for m in lengths])


def logits_of_steps(
    head: DraftHead, texts: Texts, steps: Iterator[Step]
) -> dict[tuple[int, int], Floats]:
    """Logits by start and depth."""
    out: dict[tuple[int, int], Floats] = {}
    with torch.no_grad():
        for step in steps:
            starts = texts.starts[step.drafts].tolist()
            rows = head.logits(step.y, texts.tokens[step.at]).numpy()
            out |= {(start, step.depth): row for start, row in zip(starts, rows, strict=True)}
    return out
