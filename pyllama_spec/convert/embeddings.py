"""Token embedding, output and vocabulary table of a draft of any kind."""

from __future__ import annotations

from dataclasses import dataclass

from pyllama_spec.convert.checkpoint_tensors import CheckpointTensors, first_rows
from pyllama_spec.convert.sizes import Sizes
from pyllama_spec.convert.vocabulary import map_vocabulary
from pyllama_spec.errors import ConversionError
from pyllama_spec.gguf.tensors import Ids, PlannedTensor, SourceTensor


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
    """Reads d2t and t2d.

    Args:
        tensors: the tensors.
        n_draft_vocab: config.json's draft_vocab_size; None if it is missing.
        sizes: the draft's sizes.
        n_target: the target's vocabulary.

    Raises:
        ConversionError: a table is missing or wrong, or contradicts the other one.

    """
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
    """The draft's own embedding, whose first n_vocab rows are those of the target's tokens.

    Raises:
        ConversionError: its shape is wrong, or it has fewer tokens than the target.

    """
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
