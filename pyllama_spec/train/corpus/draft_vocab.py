"""The draft vocabulary: the target's tokens that are frequent in answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pyllama_spec.engine import Vocab
from pyllama_spec.errors import ArgumentError
from pyllama_spec.train.corpus.store import TextSequence

# A prompt's token says less about answers than an answer's does.
_PROMPT_WEIGHT = 0.1


@dataclass(frozen=True, slots=True)
class DraftVocab:
    """A draft vocabulary and its coverage.

    Attributes:
        d2t: [n_draft_vocab] int64, the target's id of each draft id, ascending.
        t2d: [n_vocab] int64, the draft id of each target id; -1 if there is none.
        coverage: the share of the corpus's answer tokens in the draft vocabulary.

    """

    d2t: npt.NDArray[np.int64]
    t2d: npt.NDArray[np.int64]
    coverage: float


def token_weights(
    sequences: Sequence[TextSequence], n_vocab: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """[n_vocab] each token's weight for the choice, and its frequency in answers."""
    answers = np.zeros(n_vocab, np.int64)
    prompts = np.zeros(n_vocab, np.int64)
    for sequence in sequences:
        answers += np.bincount(sequence.tokens[sequence.mask], minlength=n_vocab)
        prompts += np.bincount(sequence.tokens[~sequence.mask], minlength=n_vocab)
    return answers + _PROMPT_WEIGHT * prompts, answers


def choose_draft_vocab(
    sequences: Sequence[TextSequence], n_vocab: int, size: int, always: Iterable[int]
) -> DraftVocab:
    """Chooses the most frequent tokens of a corpus.

    Args:
        sequences: the corpus.
        n_vocab: the size of the target's vocabulary.
        size: the number of tokens to choose.
        always: tokens to include regardless of the corpus, such as those that end an answer.

    Raises:
        ArgumentError: size is larger than n_vocab, or smaller than the number of tokens in
            `always`.

    """
    weight, answers = token_weights(sequences, n_vocab)
    kept = sorted({*always})
    if not len(kept) <= size <= n_vocab:
        raise ArgumentError(
            f"n_draft_vocab={size} is outside {len(kept)} .. {n_vocab}, the target's vocabulary"
        )
    weight[kept] = np.inf
    # Among tokens that are equally frequent the smaller ids, which merges made earlier.
    order = np.lexsort((np.arange(n_vocab), -weight))
    d2t = np.sort(order[:size]).astype(np.int64)
    t2d = np.full(n_vocab, -1, np.int64)
    t2d[d2t] = np.arange(size)
    coverage = float(answers[d2t].sum() / max(answers.sum(), 1))
    return DraftVocab(d2t, t2d, coverage)


def known_draft_vocab(
    sequences: Sequence[TextSequence], n_vocab: int, d2t: npt.NDArray[np.int64]
) -> DraftVocab:
    """An earlier choice, and its coverage of this corpus."""
    t2d = np.full(n_vocab, -1, np.int64)
    t2d[d2t] = np.arange(len(d2t))
    _, answers = token_weights(sequences, n_vocab)
    return DraftVocab(d2t, t2d, float(answers[d2t].sum() / max(answers.sum(), 1)))


def ending_tokens(vocab: Vocab) -> list[int]:
    """The ids that end a generation."""
    return [token for token in range(vocab.n_tokens) if vocab.is_eog(token)]
