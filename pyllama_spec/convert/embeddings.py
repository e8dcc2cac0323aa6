"""Token embedding, output and vocabulary table of a draft of any kind.

Checkpoints hold `d2t`, an *offset* per draft id (target id = i + d2t[i]), and `t2d`, a mask over
the target's vocabulary. GGUF holds the target ids themselves. A wrong table costs only acceptance,
so nothing is repaired without proof from the checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pyllama_spec.convert.checkpoint_tensors import CheckpointTensors, first_rows
from pyllama_spec.convert.sizes import Sizes
from pyllama_spec.errors import ConversionError
from pyllama_spec.gguf.tensors import Ids, PlannedTensor, SourceTensor


@dataclass(frozen=True, slots=True)
class VocabularyMap:
    """The table d2t to write.

    Attributes:
        target_ids: int64 `[n_draft_vocab]`, no two alike; None if draft id i is target id i for the
            whole vocabulary, so that no table is written.
        notes: remarks for the user.
    """

    target_ids: Ids | None
    notes: tuple[str, ...] = ()


def map_vocabulary(
    d2t: Ids | None,
    t2d: Ids | None,
    *,
    n_output: int,
    n_trained: int,
    n_vocab: int,
    has_output: bool = True,
) -> VocabularyMap:
    """The target id of each draft id.

    Args:
        d2t: int64 `[n_output]` offsets; None if the checkpoint has none.
        t2d: int64 `[n_trained]` of 0 and 1; None if the checkpoint has none.
        n_output: rows of the head's output.
        n_trained: the vocabulary that the head was trained for, config.json's vocab_size.
        n_vocab: the target's vocabulary, which may be padded differently.
        has_output: whether the head has its own output; the target's has all tokens.
    """
    marked = _marked(t2d, n_trained)
    if d2t is not None and d2t.shape != (n_output,):
        raise ConversionError(
            f"d2t has the shape {list(d2t.shape)}, not [{n_output}], one entry per draft token"
        )
    if marked is not None and len(marked) == n_trained and n_output == n_trained:
        marked = None  # every token: a mask that says nothing
    notes: tuple[str, ...] = ()
    if d2t is not None and d2t.any():
        ids, notes = _from_offsets(d2t, marked, n_vocab)
    elif marked is not None:
        ids = _from_mask(marked, n_output)
        if d2t is not None:
            notes = ("d2t is all zero; its ids are taken from t2d",)
    elif n_output == n_trained:
        return _full_vocabulary(n_output, n_vocab) if has_output else VocabularyMap(None)
    else:
        lost = "d2t is all zero" if d2t is not None else "there is neither d2t nor t2d"
        raise ConversionError(
            f"the head predicts {n_output} of {n_trained} tokens, and {lost}: without the table "
            "of their ids no draft would be accepted"
        )
    _check(ids, n_vocab)
    is_whole = n_output == n_vocab and bool(np.array_equal(ids, np.arange(n_vocab)))
    return VocabularyMap(None if is_whole else ids, notes)


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


def _from_mask(marked: Ids, n_output: int) -> Ids:
    if len(marked) != n_output:
        raise ConversionError(
            f"t2d marks {len(marked)} tokens, and the head knows {n_output}; d2t does not help: "
            "it is missing or all zero"
        )
    return marked


def _from_offsets(d2t: Ids, marked: Ids | None, n_vocab: int) -> tuple[Ids, tuple[str, ...]]:
    ids = np.arange(len(d2t)) + d2t
    if marked is None or np.array_equal(np.sort(ids), marked):
        return ids, ()
    if np.array_equal(np.sort(d2t), marked):
        return d2t, ("d2t holds target ids and no offsets, as t2d proves",)
    _check(ids, n_vocab)
    odd = np.setxor1d(ids, marked)[0]
    one, other = ("d2t", "t2d") if odd in ids else ("t2d", "d2t")
    raise ConversionError(
        f"d2t and t2d contradict each other: {one} has the target token {odd}, {other} has not"
    )


def _check(ids: Ids, n_vocab: int) -> None:
    outside = np.flatnonzero((ids < 0) | (ids >= n_vocab))
    if len(outside):
        i = int(outside[0])
        raise ConversionError(
            f"d2t maps draft token {i} to target token {ids[i]}, outside 0 .. {n_vocab - 1}; is "
            "this the target that the draft was made for?"
        )
    values, counts = np.unique(ids, return_counts=True)
    if len(values) != len(ids):
        twice = int(values[counts > 1][0])
        raise ConversionError(f"d2t maps two draft tokens to target token {twice}")


def _full_vocabulary(n_output: int, n_vocab: int) -> VocabularyMap:
    """The identity map; only the padding at the end may differ."""
    if n_output >= n_vocab:
        return VocabularyMap(None)
    note = f"the head knows the first {n_output} of {n_vocab} tokens, the rest is padding"
    return VocabularyMap(np.arange(n_output, dtype=np.int64), (note,))


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The vocabulary of a draft's output.

    Attributes:
        n_output: rows of the output.
        n_trained: the vocabulary that the draft was trained for, config.json's vocab_size.
        n_target: the vocabulary of the target's GGUF, which may be padded differently.
        target_ids: the target id of each row, int64 `[n_output]`; None if row i is token i.
        notes: remarks for the user.
    """

    n_output: int
    n_trained: int
    n_target: int
    target_ids: Ids | None
    notes: tuple[str, ...]

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
    def tensors(self) -> list[PlannedTensor]:
        """The table d2t, if the vocabulary is reduced."""
        ids = self.target_ids
        return [] if ids is None else [PlannedTensor("d2t", ids.shape, values=ids)]


def take_vocabulary(
    tensors: CheckpointTensors, n_draft_vocab: int | None, sizes: Sizes, n_target: int
) -> Vocabulary:
    """Reads d2t and t2d."""
    head = tensors.find("lm_head.weight")
    n_output = n_draft_vocab or sizes.n_vocab
    if n_draft_vocab is None and head is not None and head.shape[:1] != (n_output,):
        raise ConversionError(
            f"config.json has no draft_vocab_size, and {head.name} {list(head.shape)} is not as "
            f"high as the vocabulary, {n_output}"
        )
    mapped = map_vocabulary(
        tensors.take_ids("d2t"), tensors.take_ids("t2d"),
        n_output=n_output, n_trained=sizes.n_vocab, n_vocab=n_target, has_output=head is not None,
    )  # fmt: skip
    return Vocabulary(n_output, sizes.n_vocab, n_target, mapped.target_ids, mapped.notes)


def take_embedding(
    tensors: CheckpointTensors, sizes: Sizes, notes: list[str], n_vocab: int
) -> SourceTensor:
    """The draft's own embedding, whose first n_vocab rows are those of the target's tokens."""
    embedding = tensors.take("embed_tokens.weight", sizes.n_vocab, sizes.n_embd)
    if sizes.n_vocab < n_vocab:
        raise ConversionError(
            f"{embedding.name} has {sizes.n_vocab} rows, fewer than the target's {n_vocab} "
            "tokens; is this the target that the draft was made for?"
        )
    if sizes.n_vocab > n_vocab:
        notes.append(f"{embedding.name} is cut from {sizes.n_vocab} to the target's {n_vocab} rows")
    return embedding


def take_output(
    tensors: CheckpointTensors, sizes: Sizes, vocabulary: Vocabulary, notes: list[str]
) -> PlannedTensor | None:
    """The draft's own output; None if it has none."""
    if tensors.find("lm_head.weight") is None:
        return None
    head = tensors.take("lm_head.weight", vocabulary.n_output, sizes.n_embd)
    n_rows = vocabulary.n_rows
    if n_rows < vocabulary.n_output:
        notes.append(f"{head.name} is cut from {vocabulary.n_output} to the target's {n_rows} rows")
    return first_rows("output.weight", head, n_rows)
