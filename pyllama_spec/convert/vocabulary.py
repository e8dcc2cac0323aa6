"""The table from a draft's token ids to its target's.

Checkpoints hold `d2t`, an *offset* per draft id (target id = i + d2t[i]), and `t2d`, a mask over
the target's vocabulary. GGUF holds the target ids themselves. A wrong table costs only acceptance,
so nothing is repaired without proof from the checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pyllama_spec.convert.config import Sizes
from pyllama_spec.convert.layout import CheckpointTensors
from pyllama_spec.errors import ConversionError
from pyllama_spec.gguf.tensors import Ids, PlannedTensor


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The vocabulary of a draft's output."""

    n_output: int  # rows of the output
    n_trained: int  # the vocabulary that the draft was trained for, config.json's vocab_size
    n_target: int  # the vocabulary of the target's GGUF, which may be padded differently
    # the target id of each row, int64 [n_output], no two alike; None if row i is token i, so that
    # no table is written
    target_ids: Ids | None
    notes: tuple[str, ...] = ()  # remarks for the user

    @property
    def is_whole(self) -> bool:
        """Whether a matrix of the target's vocabulary can be the draft's output."""
        return self.n_output == self.n_trained and self.target_ids is None

    @property
    def n_reduced(self) -> int | None:
        """The rows of a reduced output; None for the whole vocabulary."""
        return None if self.target_ids is None else self.n_output

    @property
    def n_rows(self) -> int:
        """Rows of the GGUF's output: those of a reduced one, or one per token of the target."""
        return self.n_target if self.target_ids is None else self.n_output

    @property
    def tensors(self) -> dict[str, PlannedTensor]:
        """The table d2t by its name, if the vocabulary is reduced."""
        ids = self.target_ids
        return {} if ids is None else {"d2t": PlannedTensor("d2t", ids.shape, values=ids)}


def take_vocabulary(tensors: CheckpointTensors, sizes: Sizes, n_target: int) -> Vocabulary:
    """Reads d2t and t2d."""
    head = tensors.find("lm_head.weight")
    n_output = sizes.n_draft_vocab or sizes.n_vocab
    if sizes.n_draft_vocab is None and head is not None and head.shape[:1] != (n_output,):
        raise ConversionError(
            f"config.json has no draft_vocab_size, and {head.name} {list(head.shape)} is not as "
            f"high as the vocabulary, {n_output}"
        )
    return map_vocabulary(
        tensors.take_ids("d2t"), tensors.take_ids("t2d"),
        n_output=n_output, n_trained=sizes.n_vocab, n_target=n_target, has_output=head is not None,
    )  # fmt: skip


def map_vocabulary(
    d2t: Ids | None,  # int64 [n_output] offsets; None if the checkpoint has none
    t2d: Ids | None,  # int64 [n_trained] of 0 and 1; None if the checkpoint has none
    *,
    n_output: int,  # rows of the draft's output
    n_trained: int,  # the vocabulary that the draft was trained for
    n_target: int,  # the target's vocabulary
    has_output: bool = True,  # whether the head has its own output; the target's has all tokens
) -> Vocabulary:
    """The target id of each draft id."""
    marked = _marked(t2d, n_trained)
    if d2t is not None and d2t.shape != (n_output,):
        raise ConversionError(
            f"d2t has the shape {list(d2t.shape)}, not [{n_output}], one entry per draft token"
        )
    if marked is not None and len(marked) == n_trained and n_output == n_trained:
        marked = None  # every token: a mask that says nothing
    ids: Ids | None = None
    notes: tuple[str, ...] = ()
    if d2t is not None and d2t.any():
        ids, notes = _from_offsets(d2t, marked, n_target)
    elif marked is not None:
        if len(marked) != n_output:
            raise ConversionError(
                f"t2d marks {len(marked)} tokens, and the head knows {n_output}; d2t does not "
                "help: it is missing or all zero"
            )
        ids = marked
        if d2t is not None:
            notes = ("d2t is all zero; its ids are taken from t2d",)
    elif n_output != n_trained:
        lost = "d2t is all zero" if d2t is not None else "there is neither d2t nor t2d"
        raise ConversionError(
            f"the head predicts {n_output} of {n_trained} tokens, and {lost}: without the table "
            "of their ids no draft would be accepted"
        )
    elif has_output and n_output < n_target:  # only the padding at the end differs
        ids = np.arange(n_output, dtype=np.int64)
        notes = (f"the head knows the first {n_output} of {n_target} tokens, the rest is padding",)
    if ids is not None:
        _check(ids, n_target)
        if n_output == n_target and np.array_equal(ids, np.arange(n_target)):
            ids = None
    return Vocabulary(n_output, n_trained, n_target, ids, notes)


def _marked(t2d: Ids | None, n_trained: int) -> Ids | None:
    """The target ids that the mask selects, in order."""
    if t2d is None:
        return None
    if t2d.shape != (n_trained,):
        raise ConversionError(
            f"t2d has the shape {list(t2d.shape)}, not [{n_trained}], the vocab_size of config.json"
        )
    if ((t2d != 0) & (t2d != 1)).any():
        raise ConversionError("t2d is not a mask: it holds numbers other than 0 and 1")
    return np.flatnonzero(t2d).astype(np.int64)


def _from_offsets(d2t: Ids, marked: Ids | None, n_target: int) -> tuple[Ids, tuple[str, ...]]:
    ids = np.arange(len(d2t)) + d2t
    if marked is None or np.array_equal(np.sort(ids), marked):
        return ids, ()
    if np.array_equal(np.sort(d2t), marked):
        return d2t, ("d2t holds target ids and no offsets, as t2d proves",)
    _check(ids, n_target)
    odd = np.setxor1d(ids, marked)[0]
    one, other = ("d2t", "t2d") if odd in ids else ("t2d", "d2t")
    raise ConversionError(
        f"d2t and t2d contradict each other: {one} has the target token {odd}, {other} has not"
    )


def _check(ids: Ids, n_target: int) -> None:
    outside = np.flatnonzero((ids < 0) | (ids >= n_target))
    if len(outside):
        i = int(outside[0])
        raise ConversionError(
            f"d2t maps draft token {i} to target token {ids[i]}, outside 0 .. {n_target - 1}; is "
            "this the target that the draft was made for?"
        )
    values, counts = np.unique(ids, return_counts=True)
    if len(values) != len(ids):
        twice = int(values[counts > 1][0])
        raise ConversionError(f"d2t maps two draft tokens to target token {twice}")
