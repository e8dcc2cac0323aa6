"""The likeliest next tokens of a row of logits, and a draw from them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pyllama_spec.train.errors import TrainError

_BLOCK = 64


@dataclass(frozen=True, slots=True)
class TopK:
    """The likeliest tokens of a distribution with their log-probabilities.

    Attributes:
        ids: [k] int64, the likeliest first; the smaller id first if equal.
        log_p: [k] float32, natural logarithms of their probabilities in the whole distribution.

    """

    ids: npt.NDArray[np.int64]
    log_p: npt.NDArray[np.float32]


def top_k_of(logits: npt.NDArray[np.float32], k: int) -> TopK:
    """The k likeliest tokens of a row, or all if there are fewer.

    Args:
        logits: [n_vocab] float32.
        k: the number of tokens.

    Raises:
        TrainError: a logit is NaN or inf, or all are -inf.

    """
    highest = logits.max()  # nan where one of them is
    if not np.isfinite(highest):
        raise TrainError(
            f"the target's logits are not numbers ({highest}): its file is damaged; download it "
            "again"
        )
    k = min(k, len(logits))
    ids = _at_least(logits, _bound(logits, k))
    if len(ids) > k:
        # Equal logits at the edge: the smaller ids stay, whatever the partition does with them.
        values = logits[ids]
        edge = np.partition(values, len(ids) - k)[len(ids) - k]
        above = ids[values > edge]
        ids = np.concatenate((above, ids[values == edge][: k - len(above)]))
    ids = ids[np.lexsort((ids, -logits[ids]))]
    log_sum = highest + np.log(np.exp(logits - highest).sum())
    return TopK(ids, logits[ids] - log_sum)


def _bound(logits: npt.NDArray[np.float32], k: int) -> float:
    """A value that at least k logits reach: the k-th largest of the blocks' maxima.

    Sorting a whole vocabulary takes several times longer than the rest of a step in Python.
    """
    n_blocks = len(logits) // _BLOCK
    if n_blocks < k:
        return -np.inf
    blocks = logits[: n_blocks * _BLOCK].reshape(_BLOCK, n_blocks)
    return float(np.partition(blocks.max(axis=0), n_blocks - k)[n_blocks - k])


def _at_least(logits: npt.NDArray[np.float32], bound: float) -> npt.NDArray[np.int64]:
    return np.flatnonzero(logits >= np.float32(bound)).astype(np.int64, copy=False)


def draw(top: TopK, temperature: float, rng: np.random.Generator) -> int:
    """Draws a token of the likeliest ones; the first one at temperature 0.

    The largest of log p / temperature + Gumbel noise has the distribution of a draw (Gumbel-max).
    """
    if temperature <= 0:
        return int(top.ids[0])
    noise = rng.gumbel(size=len(top.ids))
    return int(top.ids[int(np.argmax(top.log_p / temperature + noise))])
