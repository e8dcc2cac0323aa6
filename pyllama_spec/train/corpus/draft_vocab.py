"""The draft vocabulary: the frequent tokens of answers, and how many are worth their cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    sequences: Sequence[TextSequence], n_vocab: int, size: int, always: Iterable[int]
) -> DraftVocab:
    """Chooses the most frequent tokens of a corpus."""
    kept = sorted({*always})
    if not len(kept) <= size <= n_vocab:
        raise ArgumentError(
            "n_draft_vocab", size, f"{len(kept)} to {n_vocab}, the size of the target's vocabulary"
        )
    order = _by_frequency(sequences, n_vocab, kept)
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


# Sizes are multiples of it, and at least four.
_STEP = 256
_LEAST = 4 * _STEP
# By default a head's weights are at most this share of the target's.
_SHARE_OF_TARGET = 0.1
# What is compared are tokens per byte that is read, as decoding is bound by memory: rounds of four
# drafted tokens, each of which is right in seven of ten cases if it can be drafted at all, and a
# verify batch that costs 1.3 plain rounds. (The shipped head: 0.59 to 0.71, and 1.2 to 1.5.)
_N_STEPS, _RATE, _VERIFY = 4, 0.7, 1.3
_BYTES = {"f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32}


def head_bytes(
    small: Mapping[str, tuple[int, ...]],
    large: Mapping[str, tuple[int, ...]],
    n_more: int,
    export_type: str,
) -> Callable[[int], float]:
    """The bytes by vocabulary size, from the tensors of heads with one token and n_more more."""
    first, second = (sum(map(math.prod, sizes.values())) for sizes in (small, large))
    return lambda size: _BYTES[export_type] * (first + (size - 1) * (second - first) / n_more)


def coverage(
    sequences: Sequence[TextSequence], n_vocab: int, always: Iterable[int]
) -> npt.NDArray[np.float64]:
    """[n_vocab + 1] the share of answer tokens that the n most frequent tokens cover.

    The count uses answers that had no part in the choice: the tokens of either half of the texts
    are looked up in the other half. Otherwise tokens that are frequent by chance would look
    covered.
    """
    included = sorted({*always})
    total, by_rank = 0, np.zeros(n_vocab, np.int64)
    for half in (0, 1):
        order = _by_frequency(sequences[half::2], n_vocab, included)
        _, answers = token_weights(sequences[1 - half :: 2], n_vocab)
        by_rank += answers[order]
        total += int(answers.sum())
    return np.concatenate([[0.0], np.cumsum(by_rank) / max(total, 1)])


def choose_size(
    covered: npt.NDArray[np.float64],
    weighs: Callable[[int], float],
    target_bytes: int,
    n_least: int,
) -> int:
    """Chooses the size with most tokens per byte, up to a tenth of the target if possible.

    `covered` is the result of coverage(); `weighs` gives the head's bytes by size.
    """
    n_vocab = len(covered) - 1
    least = -(-max(n_least, _LEAST) // _STEP) * _STEP
    if n_vocab <= least:
        return n_vocab
    sizes: list[int] = [*range(least, n_vocab, _STEP), n_vocab]
    max_bytes = _SHARE_OF_TARGET * target_bytes
    if weighs(least) <= max_bytes:
        sizes = [size for size in sizes if weighs(size) <= max_bytes]

    def per_byte(size: int) -> float:
        rate = _RATE * float(covered[size])
        tokens: float = sum(rate**i for i in range(_N_STEPS + 1))
        return tokens / (_VERIFY * target_bytes + _N_STEPS * weighs(size))

    return max(sizes, key=per_byte)
