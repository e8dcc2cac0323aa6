"""EAGLE-3 as a kind of draft for training runs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pyllama_spec.gguf.tensors import PlannedTensor
from pyllama_spec.train.corpus.selection import sample, token_counts
from pyllama_spec.train.corpus.store import TextSequence
from pyllama_spec.train.eagle3.chains import run_chains
from pyllama_spec.train.eagle3.config import Eagle3TrainConfig
from pyllama_spec.train.eagle3.head import Eagle3Head, HeadShape, initialise
from pyllama_spec.train.eagle3.induction_heads import set_induction_heads
from pyllama_spec.train.progress import Reporter
from pyllama_spec.train.run.chain_objective import chain_losses, count_accepted
from pyllama_spec.train.run.init_draft import InitDraft, Keys
from pyllama_spec.train.run.kind import Kind, Start, common_sizes
from pyllama_spec.train.run.ngrams import table_of
from pyllama_spec.train.run.objective import Losses
from pyllama_spec.train.run.texts import COPIED_SHARE, Texts, with_fewer_lookups

# Sequences whose rows give the scale of a layer's input, and how the first one tells its token.
_SAMPLE_SEQUENCES = 64


def shape_of(keys: Keys, n_draft_vocab: int) -> HeadShape:
    """Reads the shape of a head from its file's keys."""
    if keys.number("block_count") != 1:
        raise ValueError(f"{keys.number('block_count')} layers instead of one")
    return HeadShape(
        n_vocab=keys.number("vocab_size"),
        n_draft_vocab=n_draft_vocab,
        n_embd_target=keys.number("target_hidden_size"),
        fc_norm=bool(keys.values.get("fc_norm", False)),
        norm_output=bool(keys.values.get("norm_output", False)),
        **keys.common(),
    )


class Eagle3Kind(Kind[Eagle3Head]):
    """Heads of one layer that draft a token per step."""

    arch = "eagle3"
    title = "EAGLE-3"

    def __init__(self, config: Eagle3TrainConfig) -> None:
        self._config = config
        self.n_steps = config.fit.n_steps

    def notes(self, layers: tuple[int, ...]) -> list[str]:
        """A remark on options that stock llama.cpp does not load."""
        if not self._config.head.is_plain or len(layers) == 3:
            return []
        n = len(layers)
        return [f"stock llama.cpp takes 3 target layers, and does not load a head with {n}"]

    def _shape(self, start: Start) -> HeadShape:
        wanted = self._config.head
        return HeadShape(
            **common_sizes(start, wanted), fc_norm=wanted.fc_norm, norm_output=wanted.norm_output
        )

    def sizes(self, start: Start) -> dict[str, tuple[int, ...]]:
        """See Kind."""
        return self._shape(start).sizes()

    def new_head(self, start: Start, reporter: Reporter) -> Eagle3Head:
        """A head initialised with induction heads and the target's output."""
        config, weights, shape = self._config, start.weights, self._shape(start)
        head = Eagle3Head(shape, weights.embedding, start.vocab.d2t)
        train, seed = start.train, config.fit.seed
        seen = sample(train[:_SAMPLE_SEQUENCES], start.corpus, start.source, len(start.layers))
        initialise(head, weights.output, weights.output_norm, seen.rms, seed)
        counts = token_counts(start.corpus, train, shape.n_vocab)
        r2 = set_induction_heads(head, seen.rows, seen.tokens, counts, seed)
        reporter.line(f"the first layer input explains {100 * max(r2, 0):.0f}% of its token")
        return head

    def known_head(self, start: Start, init: InitDraft) -> Eagle3Head:
        """A head for an earlier draft."""
        assert isinstance(init.shape, HeadShape)
        return Eagle3Head(init.shape, start.weights.embedding, init.d2t)

    def losses(
        self, head: Eagle3Head, texts: Texts, dtype: torch.dtype, generator: torch.Generator
    ) -> Losses:
        """The losses of the training-time test, from the positions where decoding asks the head."""
        fit = self._config.fit
        default = 1.0 if head.shape.is_plain else COPIED_SHARE
        share = default if fit.copied_share is None else fit.copied_share
        texts = with_fewer_lookups(texts, share, generator)
        return chain_losses(
            head, run_chains(head, texts, fit.n_steps), texts, fit.n_steps, fit.step_decay, dtype,
            fit.missed_share, generator,
        )  # fmt: skip

    def n_accepted(self, head: Eagle3Head, texts: Texts) -> Tensor:
        """See Kind."""
        return count_accepted(head, run_chains(head, texts, self.n_steps), texts)

    def extra_tensors(
        self, sequences: Sequence[TextSequence], init: InitDraft | None, reporter: Reporter
    ) -> list[PlannedTensor]:
        """The n-gram table of the training texts."""
        config = self._config
        # A plain head that one begins with is one for stock llama.cpp, too, which knows no table.
        is_plain = init is not None and isinstance(init.shape, HeadShape) and init.shape.is_plain
        if not config.max_ngrams or (is_plain and config.n_ngrams is None):
            return []
        return table_of(sequences, init, config.max_ngrams, reporter)
