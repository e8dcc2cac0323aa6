"""The draft vocabulary: the frequent tokens of answers."""

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
# By default it has this share of the answers' tokens, as SmolLM2's head has with 8,192 tokens; half
# as many again gave nothing. Sizes are multiples of a step, and at least four.
_COVERAGE, _STEP = 0.97, 256


@dataclass(frozen=True, slots=True)
class DraftVocab:
    """A draft vocabulary and its coverage."""

    d2t: npt.NDArray[np.int64]  # [n_draft_vocab] int64, the target's id of each draft id, ascending
    # [n_vocab] int64, the draft id of each target id; -1 if there is none
    t2d: npt.NDArray[np.int64]
    coverage: float  # the share of the corpus's answer tokens in the draft vocabulary


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
    sequences: Sequence[TextSequence], n_vocab: int, size: int | None, always: Iterable[int]
) -> DraftVocab:
    """Chooses the most frequent tokens of a corpus."""
    kept = sorted({*always})
    order = _by_frequency(sequences, n_vocab, kept)
    if size is None:
        _, answers = token_weights(sequences, n_vocab)
        covered = np.cumsum(answers[order]) / max(answers.sum(), 1)
        least = max(int(np.searchsorted(covered, _COVERAGE)) + 1, len(kept), 4 * _STEP)
        size = min(-(-least // _STEP) * _STEP, n_vocab)
    if not len(kept) <= size <= n_vocab:
        raise ArgumentError(
            "n_draft_vocab", size, f"{len(kept)} to {n_vocab}, the size of the target's vocabulary"
        )
    return known_draft_vocab(sequences, n_vocab, np.sort(order[:size]).astype(np.int64))


def known_draft_vocab(
    sequences: Sequence[TextSequence], n_vocab: int, d2t: npt.NDArray[np.int64]
) -> DraftVocab:
    """A choice of tokens, and its coverage of a corpus."""
    t2d = np.full(n_vocab, -1, np.int64)
    t2d[d2t] = np.arange(len(d2t))
    _, answers = token_weights(sequences, n_vocab)
    return DraftVocab(d2t, t2d, float(answers[d2t].sum() / max(answers.sum(), 1)))


def _by_frequency(
    sequences: Sequence[TextSequence], n_vocab: int, always: Sequence[int]
) -> npt.NDArray[np.intp]:
    """The tokens, the most frequent first.

    Among tokens that are equally frequent the smaller ids come first, which merges made earlier.
    """
    weight, _ = token_weights(sequences, n_vocab)
    weight[always] = np.inf
    return np.lexsort((np.arange(n_vocab), -weight))


def ending_tokens(vocab: Vocab) -> list[int]:
    """The ids that end a generation."""
    return [token for token in range(vocab.n_tokens) if vocab.is_eog(token)]
