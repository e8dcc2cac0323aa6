"""DFlash as a kind of draft for training runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyllama_spec.engine import Vocab
from pyllama_spec.gguf.tensors import PlannedTensor
from pyllama_spec.train.corpus.selection import sample, token_counts
from pyllama_spec.train.corpus.store import TextSequence
from pyllama_spec.train.dflash.config import DFlashTrainConfig
from pyllama_spec.train.dflash.head import DFlashHead, DFlashShape, initialise
from pyllama_spec.train.dflash.induction_heads import set_induction_heads
from pyllama_spec.train.dflash.objective import block_losses, count_accepted, with_fewer
from pyllama_spec.train.progress import Reporter
from pyllama_spec.train.run.init_draft import InitDraft, Keys
from pyllama_spec.train.run.kind import Kind, Start, common_sizes
from pyllama_spec.train.run.ngrams import table_of
from pyllama_spec.train.run.objective import Losses
from pyllama_spec.train.run.texts import COPIED_SHARE, Texts, with_fewer_lookups

MASK_KEY = "tokenizer.ggml.mask_token_id"
# Sequences whose rows give the scale of a layer's input.
_SAMPLE_SEQUENCES = 64
# Rows of the embedding that are shorter than this share of the usual length were never trained:
# a norm makes noise of them.
_MIN_LENGTH = 0.1


def shape_of(keys: Keys, n_draft_vocab: int) -> DFlashShape:
    """Reads the shape of a draft from its file's keys."""
    return DFlashShape(
        n_vocab=keys.target.n_vocab,
        n_draft_vocab=n_draft_vocab,
        n_embd_target=keys.target.n_embd,
        n_layer=keys.number("block_count"),
        block_size=keys.number("block_size"),
        mask_token=keys.number(MASK_KEY),
        causal=bool(keys.values["attention.causal"]),
        markov_rank=keys.sizes.get("markov_w2.weight", (0, 0))[1],
        confidence=bool(keys.values.get("has_confidence_head", False)),
        sample_from_anchor=bool(keys.values.get("sample_from_anchor", False)),
        **keys.common(),
    )


class DFlashKind(Kind[DFlashHead]):
    """Drafts that propose a block in one pass."""

    arch = "dflash"
    title = "DFlash"
    folder = "dflash"

    def __init__(self, config: DFlashTrainConfig) -> None:
        self._config = config
        self.n_steps = config.head.n_steps

    def _shape(self, start: Start, mask_token: int) -> DFlashShape:
        wanted = self._config.head
        return DFlashShape(
            **common_sizes(start, wanted, grouped=not wanted.from_anchor),
            n_layer=wanted.n_layer,
            block_size=wanted.block_size,
            mask_token=mask_token,
            causal=wanted.causal,
            markov_rank=wanted.markov_rank,
            confidence=wanted.confidence,
            sample_from_anchor=wanted.from_anchor,
        )

    def sizes(self, start: Start) -> dict[str, tuple[int, ...]]:
        """See Kind."""
        return self._shape(start, 0).sizes()

    def new_head(self, start: Start, reporter: Reporter) -> DFlashHead:
        """A head with induction heads and the target's output directions; the rest is random."""
        config, weights = self._config, start.weights
        counts = token_counts(start.corpus, start.train, start.model.info.n_vocab)
        mask = choose_mask_token(start.model.vocab, counts, weights.embedding)
        wanted, shape = config.head, self._shape(start, mask)
        head = DFlashHead(shape, weights.embedding, start.vocab.d2t)
        some = start.train[:_SAMPLE_SEQUENCES]
        seen = sample(some, start.corpus, start.source, len(start.layers))
        initialise(head, weights.output, weights.output_norm, seen.channel_rms, config.fit.seed)
        r2 = set_induction_heads(
            head, seen.rows, seen.tokens, seen.last, counts, seen.channel_rms, config.fit.seed
        )
        if wanted.from_anchor:
            reporter.line(f"the first layer input explains {100 * max(r2, 0):.0f}% of its token")
        piece = start.model.vocab.piece(mask, special=True).decode("utf-8", "replace")
        reporter.line(f"mask token: {mask} ({piece!r})")
        return head

    def known_head(self, start: Start, init: InitDraft) -> DFlashHead:
        """A head for an earlier draft, with its block size."""
        assert isinstance(init.shape, DFlashShape)
        self.n_steps = init.shape.n_steps
        return DFlashHead(init.shape, start.weights.embedding, init.d2t)

    def losses(
        self, head: DFlashHead, texts: Texts, dtype: torch.dtype, generator: torch.Generator
    ) -> Losses:
        """The losses of blocks from some of the positions where decoding asks the draft."""
        fit = self._config.fit
        share = COPIED_SHARE if fit.copied_share is None else fit.copied_share
        texts = with_fewer(with_fewer_lookups(texts, share, generator), fit.anchor_share, generator)
        return block_losses(head, texts, fit, dtype, generator)

    def n_accepted(self, head: DFlashHead, texts: Texts) -> Tensor:
        """See Kind."""
        return count_accepted(head, texts)

    def extra_tensors(
        self, sequences: Sequence[TextSequence], init: InitDraft | None, reporter: Reporter
    ) -> list[PlannedTensor]:
        """The n-gram table of the training texts."""
        return table_of(sequences, init, self._config.max_ngrams, reporter)

    def keys(self, head: DFlashHead) -> dict[str, Any]:
        """The mask token, in place of one that the target's tokenizer names."""
        return {MASK_KEY: head.shape.mask_token}


def choose_mask_token(
    vocab: Vocab, counts: npt.NDArray[np.int64], embedding: npt.NDArray[np.float32]
) -> int:
    """A token without occurrences: its row of the target's embedding becomes the mask's.

    A mask token of the vocabulary comes first, then the last control token that neither ends a text
    nor occurs in one, then the last ordinary one that does not occur, then the rarest.

    Args:
        vocab: the target's vocabulary.
        counts: [n_vocab] int64, the occurrences of each token in the text.
        embedding: [n_vocab, n_embd] float32, the target's embedding.
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
