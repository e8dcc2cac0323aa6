"""The configuration of an EAGLE-3 run. With the target it determines the result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from pyllama_spec.options import option
from pyllama_spec.train.config import N_NGRAMS, FitSettings, HeadSettings, RunConfig


@dataclass(frozen=True, slots=True)
class HeadConfig(HeadSettings):
    """The shape of an EAGLE-3 head; see HeadSettings.

    Attributes:
        fc_norm, norm_output: options of EAGLE-3.1 (arXiv 2605.09992); with both off and three
            target layers, stock llama.cpp loads the head too.
    """

    fc_norm: bool = True
    norm_output: bool = True

    @property
    def is_plain(self) -> bool:
        """Whether the head uses no option of EAGLE-3.1."""
        return not self.fc_norm and not self.norm_output


@dataclass(frozen=True, slots=True)
class FitConfig(FitSettings):
    """The options of fitting an EAGLE-3 head; see FitSettings.

    The default copied_share is 0.1, and 1 for a plain head: stock llama.cpp does not copy.

    Attributes:
        n_steps: the depth of the training-time test: how often the head's own row is fed back.
    """

    n_steps: int = option(
        4, low=1, cli="--steps", metavar="N", help="depth to which it learns to draft"
    )


@dataclass(frozen=True, slots=True)
class Eagle3TrainConfig(RunConfig):
    """A whole run: from a target's GGUF to an EAGLE-3 draft's; see RunConfig.

    A plain head, for stock llama.cpp, has no n-gram table unless n_ngrams requests one.
    """

    kind: ClassVar[str] = "eagle3"

    head: HeadConfig = field(default_factory=HeadConfig)
    fit: FitConfig = field(default_factory=FitConfig)

    @property
    def own_words(self) -> list[str]:
        """See RunConfig."""
        return ["--plain"] if self.head.is_plain else []

    @property
    def default_ngrams(self) -> int:
        """See RunConfig."""
        return 0 if self.head.is_plain else N_NGRAMS
