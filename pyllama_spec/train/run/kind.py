"""The interface of a kind of draft for a run. The rest of a run is common to all kinds.

A run makes text and features, chooses a draft vocabulary, steps the optimiser, measures, keeps
checkpoints and writes a file with its provenance; a kind has a head with its first weights, defines
its loss on a batch and its accepted tokens, and adds its own keys and tensors to its file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from pyllama_spec.engine import Model
from pyllama_spec.gguf.writer import Output
from pyllama_spec.train.config import Eagle3TrainConfig, MtpTrainConfig, RunConfig
from pyllama_spec.train.corpus.draft_vocab import (
    DraftVocab,
    choose_draft_vocab,
    ending_tokens,
    known_draft_vocab,
)
from pyllama_spec.train.corpus.features import Features
from pyllama_spec.train.corpus.selection import Sample, sample, token_counts
from pyllama_spec.train.corpus.store import Corpus, TextSequence
from pyllama_spec.train.progress import Reporter
from pyllama_spec.train.run.chains import ChainHead, run_chains
from pyllama_spec.train.run.head import DraftHead, DraftShape, default_n_head
from pyllama_spec.train.run.init_draft import InitDraft, Keys, Sizes, read_init_draft
from pyllama_spec.train.run.objective import Losses, Step, draft_losses
from pyllama_spec.train.run.target_weights import TargetWeights, default_layers
from pyllama_spec.train.run.texts import Texts, with_fewer_lookups

H = TypeVar("H", bound=DraftHead)
CH = TypeVar("CH", bound=ChainHead)
C = TypeVar("C", bound=RunConfig)
CC = TypeVar("CC", Eagle3TrainConfig, MtpTrainConfig)
# Sequences whose rows give the scale of a layer's input, and how the first one tells its token.
_SAMPLE_SEQUENCES = 64


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a head is made of and learns from."""

    weights: TargetWeights  # the parts of the target
    layers: tuple[int, ...]  # the layer inputs that the head reads
    corpus: Corpus  # the text and its features
    source: Features
    vocab: DraftVocab  # the vocabulary of the draft
    train: list[int]  # indices of the sequences to learn from, and of those to measure on
    held_out: list[int]


class Kind(ABC, Generic[H, C]):
    """A kind of draft, for one run.

    Attributes:
        title: its name in messages.
        head_class: the class of its heads.
        must_gain: whether a file that is no better on held-out text than the initial head is not
            written.
        copied_share: the share of drafts that begin where decoding would copy, drawn anew in each
            batch.
        missed_share: the share of drafts, drawn in the same way, that continue to learn after a
            wrong pick, where decoding would reject the rest.
        n_steps: the tokens of a draft.
    """

    title: str
    head_class: type[H]
    must_gain: bool = False
    copied_share: float = 0.1
    missed_share: float = 0.2
    n_steps: int

    def __init__(self, config: C, model: Model) -> None:
        self.config, self.model = config, model

    def notes(self, layers: tuple[int, ...]) -> list[str]:
        """Remarks for the user before anything is computed."""
        return []

    def shape_of(self, keys: Keys, sizes: Sizes, n_draft_vocab: int) -> DraftShape:
        """The shape of a draft, from its file's keys and the sizes of its tensors."""
        raise NotImplementedError

    def read_draft(self, path: Path) -> InitDraft:
        """Reads an earlier draft of the kind for this target."""
        return read_init_draft(path, self.model.info, self.config.kind, self.shape_of)

    def common_sizes(self, start: Inputs) -> dict[str, Any]:
        """The fields of DraftShape for a new head."""
        info, wanted = self.model.info, self.config.head
        n_head = default_n_head(info.n_embd, info.n_head)
        return {
            "n_vocab": info.n_vocab,
            "n_draft_vocab": len(start.vocab.d2t),
            "n_embd": info.n_embd,
            "target_layers": start.layers,
            "n_head": n_head,
            "n_head_kv": n_head,
            "n_ff": wanted.n_ff or start.weights.n_ff,
            "rope_base": start.weights.rope_base,
            "rms_eps": start.weights.rms_eps,
        }

    @abstractmethod
    def shape(self, start: Inputs) -> DraftShape:
        """The shape of a new head."""

    def begin(
        self, head: H, weights: TargetWeights, seen: Sample, counts: npt.NDArray[np.int64]
    ) -> float:
        """Sets the initial weights of a new head, and returns how well it tells tokens, an R^2.

        `counts` are the occurrences of each token in the text, [n_vocab] int64.
        """
        raise NotImplementedError

    def new_head(self, start: Inputs, reporter: Reporter) -> H:
        """A head with initial weights, on the CPU."""
        head = self.head_class(self.shape(start), start.weights.embedding, start.vocab.d2t)
        some = start.train[:_SAMPLE_SEQUENCES]
        seen = sample(some, start.corpus, start.source, len(start.layers))
        counts = token_counts(start.corpus, start.train, self.model.info.n_vocab)
        r2 = self.begin(head, start.weights, seen, counts)
        reporter.line(f"the first layer input explains {100 * max(r2, 0):.0f}% of its token")
        return head

    def known_head(self, start: Inputs, init: InitDraft) -> H:
        """A head of an earlier draft's shape; the caller sets its weights."""
        return self.head_class(init.shape, start.weights.embedding, init.d2t)

    @abstractmethod
    def steps(self, head: H, texts: Texts) -> Iterator[Step]:
        """The steps of the drafts from all starts."""

    def losses(
        self, head: H, texts: Texts, dtype: torch.dtype, generator: torch.Generator
    ) -> Losses:
        """The loss of a batch, from the positions where decoding asks the draft."""
        texts = self.asked(texts, generator)
        return draft_losses(
            head, self.steps(head, texts), texts, self.n_steps, dtype, self.missed_share, generator
        )

    def default_layers(self, n_layer: int) -> tuple[int, ...]:
        """The layer inputs that a new draft reads of a target of n_layer layers."""
        return default_layers(n_layer)

    def asked(self, texts: Texts, generator: torch.Generator) -> Texts:
        """The drafts for which decoding asks the head, and a share of the others."""
        return with_fewer_lookups(texts, self.copied_share, generator)

    def vocab(self, sequences: Sequence[TextSequence], init: InitDraft | None) -> DraftVocab:
        """The draft vocabulary: an earlier draft's, or one for the text."""
        n_vocab = self.model.info.n_vocab
        if init is not None:
            return known_draft_vocab(sequences, n_vocab, init.d2t)
        always = ending_tokens(self.model.vocab)
        return choose_draft_vocab(sequences, n_vocab, self.config.head.n_draft_vocab, always)

    def output(
        self, head: H, name: str, record: Mapping[str, Any], export_type: str
    ) -> Output | None:
        """The content of the file if export_head() does not write it."""
        return None

    def keys(self, head: H) -> dict[str, Any]:
        """Further keys of the file, with full names."""
        return {}


class ChainKind(Kind[CH, CC]):
    """A kind whose heads draft a token per step."""

    def steps(self, head: CH, texts: Texts) -> Iterator[Step]:
        """See Kind."""
        return run_chains(head, texts, self.n_steps)
