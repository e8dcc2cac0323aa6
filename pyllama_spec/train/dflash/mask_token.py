"""Which token stands in the slots of a block where nothing is known yet."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pyllama_spec.engine import Vocab

# Rows of the embedding that are shorter than this share of the usual length were never trained:
# a norm makes noise of them.
_MIN_LENGTH = 0.1


def choose_mask_token(
    vocab: Vocab, counts: npt.NDArray[np.int64], embedding: npt.NDArray[np.float32]
) -> int:
    """A token that no text has: its row in the target's embedding becomes the mask's.

    A mask that the vocabulary names is taken first, then the last control token that neither ends a
    text nor stands in one, then the last ordinary one, then the rarest.

    Args:
        vocab: the target's.
        counts: [n_vocab] int64, how often each token stands in the text.
        embedding: [n_vocab, n_embd] float32, the target's.

    """
    mask = vocab.special("mask")
    if mask is not None:
        return mask
    lengths = np.linalg.norm(embedding, axis=1)
    usable = lengths > _MIN_LENGTH * np.median(lengths)
    ids = np.arange(len(counts))
    control = np.array([vocab.is_control(int(t)) for t in ids])
    ending = np.array([vocab.is_eog(int(t)) for t in ids])
    starting = ids == (-1 if vocab.bos is None else vocab.bos)
    free = usable & ~ending & ~starting
    # Sorted by what matters most last: unseen, control, high.
    order = np.lexsort((ids, control, -counts, free))
    return int(order[-1])
