"""The interface of a kind of draft for a run. The rest of a run is common to all kinds.

A run makes text and features, chooses a draft vocabulary, steps the optimiser, measures, keeps
checkpoints and writes a file with its provenance; a kind has a head with its first weights, defines
its loss on a batch and its accepted tokens, and adds its own keys and tensors to its file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from pyllama_spec.engine import Model
from pyllama_spec.gguf.tensors import PlannedTensor
from pyllama_spec.gguf.writer import Output
from pyllama_spec.train.config import HeadSettings
from pyllama_spec.train.corpus.draft_vocab import DraftVocab, known_draft_vocab
from pyllama_spec.train.corpus.features import Features
from pyllama_spec.train.corpus.store import Corpus, TextSequence
from pyllama_spec.train.progress import Reporter
from pyllama_spec.train.run.head import DraftHead, default_n_head
from pyllama_spec.train.run.init_draft import InitDraft
from pyllama_spec.train.run.objective import Losses
from pyllama_spec.train.run.target_weights import TargetWeights
from pyllama_spec.train.run.texts import Texts

H = TypeVar("H", bound=DraftHead)


@dataclass(frozen=True, slots=True)
class Start:
    """The inputs of a new head.

    Attributes:
        model: the target.
        weights: the parts of the target.
        layers: the layer inputs that the head reads.
        corpus, source: the text and its features.
        vocab: the vocabulary of the draft.
        train: the sequences to learn from.
    """

    model: Model
    weights: TargetWeights
    layers: tuple[int, ...]
    corpus: Corpus
    source: Features
    vocab: DraftVocab
    train: list[int]


def common_sizes(start: Start, wanted: HeadSettings, *, grouped: bool = False) -> dict[str, Any]:
    """The fields of DraftShape for a new head."""
    info, weights = start.model.info, start.weights
    n_head = wanted.n_head or default_n_head(info.n_embd, info.n_head)
    fits = grouped and info.n_head_kv > 0 and n_head % info.n_head_kv == 0
    return {
        "n_vocab": info.n_vocab,
        "n_draft_vocab": len(start.vocab.d2t),
        "n_embd": info.n_embd,
        "n_embd_target": info.n_embd,
        "target_layers": start.layers,
        "n_head": n_head,
        "n_head_kv": wanted.n_head_kv or (info.n_head_kv if fits else n_head),
        "n_ff": wanted.n_ff or weights.n_ff,
        "rope_base": weights.rope_base,
        "rms_eps": weights.rms_eps,
    }


class Kind(ABC, Generic[H]):
    """A kind of draft.

    Attributes:
        arch: the general.architecture of its files.
        title: its name in messages.
        n_steps: the tokens of a draft.
        folder: the subfolder of its checkpoints and curves in the work folder; "" for the work
            folder itself. Text and features are in the same place for every kind.
        vocab_name: the name of a vocabulary of this kind in messages.
        must_gain: whether the initial head drafts already: a file that is no better on held-out
            text is not written.
    """

    arch: str
    title: str
    n_steps: int
    folder: str = ""
    vocab_name: str = "draft vocabulary"
    must_gain: bool = False

    def notes(self, layers: tuple[int, ...]) -> list[str]:
        """Remarks for the user before anything is computed."""
        return []

    @abstractmethod
    def sizes(self, start: Start) -> dict[str, tuple[int, ...]]:
        """The tensor shapes of a new head by name, before it is created."""

    @abstractmethod
    def new_head(self, start: Start, reporter: Reporter) -> H:
        """A head with initial weights, on the CPU."""

    @abstractmethod
    def known_head(self, start: Start, init: InitDraft) -> H:
        """A head of an earlier draft's shape; the caller sets its weights."""

    @abstractmethod
    def losses(
        self, head: H, texts: Texts, dtype: torch.dtype, generator: torch.Generator
    ) -> Losses:
        """The loss of a batch."""

    @abstractmethod
    def n_accepted(self, head: H, texts: Texts) -> Tensor:
        """The number of accepted tokens of the draft from each start, [n_starts], on the CPU."""

    def vocab(
        self, sequences: Sequence[TextSequence], model: Model, init: InitDraft | None
    ) -> DraftVocab | None:
        """The draft vocabulary of an earlier draft; None if it has to be chosen."""
        if init is None:
            return None
        return known_draft_vocab(sequences, model.info.n_vocab, init.d2t)

    def output(
        self, head: H, name: str, record: Mapping[str, Any], export_type: str
    ) -> Output | None:
        """The content of the file if export_head() does not write it."""
        return None

    def keys(self, head: H) -> dict[str, Any]:
        """Further keys of the file, with full names."""
        return {}

    def extra_tensors(
        self,
        sequences: Sequence[TextSequence],
        init: InitDraft | None,
        reporter: Reporter,
    ) -> list[PlannedTensor]:
        """Further tensors of the file, from the training texts."""
        return []
