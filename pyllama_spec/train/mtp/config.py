"""The configuration of a run that trains an MTP head further. It determines the result."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from pyllama_spec.errors import ArgumentError
from pyllama_spec.options import option, with_default
from pyllama_spec.train.config import FitSettings, HeadSettings, RunConfig

# As many ids as a head that drafts over a part of the vocabulary chooses from
# (drafters/output_part.py).
_N_LOSS_VOCAB = 16384


@dataclass(frozen=True, slots=True)
class MtpFitConfig(FitSettings):
    """The options of fitting an MTP head; see FitSettings.

    copied_share is 0.1 by default. The learning rate is lower than that of a new draft, since the
    head is trained already. The output matrix is the target's, and is not trained.

    Attributes:
        n_steps: the tokens of a draft: how often the head's own row is fed back.
        n_loss_vocab: the number of most frequent ids in losses and measurements; the head itself
            keeps all ids of the target.
    """

    lr: float = with_default(FitSettings, "lr", 2e-4)
    n_steps: int = option(
        3, low=1, cli="--steps", metavar="N", help="depth to which it learns to draft"
    )
    n_loss_vocab: int = option(
        _N_LOSS_VOCAB, low=1, cli="--loss-vocab", metavar="N",
        help="number of frequent tokens in losses and measurements",
    )  # fmt: skip

    def __post_init__(self) -> None:
        FitSettings.__post_init__(self)
        if self.train_output:
            raise ArgumentError(
                "train_output", True, problem="is not for an MTP head, which uses its target's "
                "output matrix",
                remedy="omit it",
            )  # fmt: skip


@dataclass(frozen=True, slots=True)
class MtpTrainConfig(RunConfig):
    """A whole run: from a target's GGUF with an MTP head to the file of a trained one.

    See RunConfig. `init` names the file of an earlier run whose head to train; without it, the
    target's head is trained. The head's shape is fixed, and the file gets no n-gram table.
    """

    kind: ClassVar[str] = "mtp"

    fit: MtpFitConfig = field(default_factory=MtpFitConfig)

    def __post_init__(self) -> None:
        RunConfig.__post_init__(self)
        if self.head != HeadSettings():
            raise ArgumentError(
                "head", problem="is set by the file of an MTP head", remedy="omit it"
            )
        if self.n_ngrams:
            raise ArgumentError(
                "n_ngrams", self.n_ngrams, problem="is not for a file with an MTP head, which "
                "has no n-gram "
                "table", remedy="leave it out",
            )  # fmt: skip

    @property
    def default_ngrams(self) -> int:
        """See RunConfig: none."""
        return 0

    @property
    def begun_with(self) -> Path:
        """The file of the initial head; for a run from use its output, if that exists."""
        is_there = self.use is not None and self.out.exists()
        return self.init or (self.out if is_there else self.target)
