"""The configuration of a DFlash run. With the target it determines the result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from pyllama_spec.errors import ArgumentError
from pyllama_spec.options import option, with_default
from pyllama_spec.train.config import FitSettings, HeadSettings, RunConfig

# The most slots: more pay on no CPU, and no draft of ours is accepted that far.
_MAX_BLOCK = 64
# And with a Markov head none that the engine takes: its chain is unrolled in the graph.
_MAX_CHAIN = 32


@dataclass(frozen=True, slots=True)
class DFlashHeadConfig(HeadSettings):
    """The shape of a DFlash draft; see HeadSettings.

    Attributes:
        n_layer: draft layers.
        block_size: slots of a block, the slot of the known token (the anchor) included.
        causal: whether a slot sees only those before it; otherwise it sees the whole block.
        markov_rank: the rank of the matrix that adds logits for followers of the previous token
            (DSpark, arXiv 2607.05147); 0 for none.
        confidence: whether each slot reports the probability that its token is accepted. This needs
            a markov_rank.
        sample_from_anchor: whether the anchor's slot drafts too, so that a block of n slots drafts
            n tokens instead of n - 1. This needs a markov_rank: engines read files without one
            differently. None for True with a markov_rank.
    """

    # fmt: off
    n_layer: int = option(2, low=1, cli="--layers", metavar="N", help="layers")
    block_size: int = option(
        4, low=2, cli="--block", metavar="N",
        help="slots of a block, the known token's included",
    )
    causal: bool = option(False, cli="--causal", help="use causal attention within a block")
    markov_rank: int = option(
        64, low=0, cli="--markov", metavar="RANK",
        help="rank of the Markov head, which reads the token before; 0: none",
    )
    confidence: bool = option(
        False, cli="--confidence",
        help="add a head that predicts each token's acceptance; needs --markov",
    )
    # fmt: on
    sample_from_anchor: bool | None = None

    def __post_init__(self) -> None:
        HeadSettings.__post_init__(self)
        max_block = _MAX_CHAIN if self.markov_rank else _MAX_BLOCK
        if self.block_size > max_block:
            what = " with a markov_rank" if self.markov_rank else ""
            raise ArgumentError("block_size", self.block_size, f"at most {max_block}{what}")
        for name in ("confidence", "sample_from_anchor"):
            if getattr(self, name) and not self.markov_rank:
                raise ArgumentError(name, problem="needs a `markov_rank` above 0")

    @property
    def from_anchor(self) -> bool:
        """Whether the anchor's slot drafts."""
        chosen = self.sample_from_anchor
        return self.markov_rank > 0 if chosen is None else chosen

    @property
    def n_steps(self) -> int:
        """The number of tokens that a block drafts."""
        return self.block_size - (0 if self.from_anchor else 1)


@dataclass(frozen=True, slots=True)
class DFlashFitConfig(FitSettings):
    """The options of fitting a DFlash draft; see FitSettings.

    A missed_share of 0, the default here, cuts the loss at the draft's first wrong pick (Spec-AUF,
    arXiv 2607.01893); 1 never does. The default copied_share is 0.1, and the learning rate is twice
    that of a head with a better start.

    Attributes:
        anchor_share: the share of positions at which a block begins, drawn anew in each batch.
        weights: the weight of a depth: "decay" for step_decay ** depth, "dpace" for its part of the
            expected number of accepted tokens (D-PACE, arXiv 2605.18810).
        dpace_alpha: the share of that weight for tokens that the draft never gets right.
        hard_share: the share of the loss against the text's own token; the rest is against the
            target's distribution.
    """

    # fmt: off
    missed_share: float = with_default(FitSettings, "missed_share", 0.0)
    lr: float = with_default(FitSettings, "lr", 1e-3)
    anchor_share: float = option(
        0.5, low=0, high=1, cli="--anchor-share", metavar="SHARE",
        help="share of positions at which training starts a block",
    )
    weights: str = option(
        "dpace", choices=("decay", "dpace"), cli="--weights",
        help="loss weights of depths: fixed, or by each depth's share in accepted tokens",
    )
    dpace_alpha: float = option(
        0.5, low=0, high=1, cli="--dpace-alpha", metavar="A",
        help="smoothing of the weights of dpace",
    )
    hard_share: float = option(
        0.0, low=0, high=1, cli="--hard-share", metavar="SHARE",
        help="share of the loss for the text's token instead of the target's distribution",
    )
    # fmt: on

    def __post_init__(self) -> None:
        FitSettings.__post_init__(self)
        if self.anchor_share == 0:
            raise ArgumentError("anchor_share", 0, problem="leaves nothing to learn from")


@dataclass(frozen=True, slots=True)
class DFlashTrainConfig(RunConfig):
    """A whole run: from a target's GGUF to a DFlash draft's; see RunConfig.

    The default type of matrices is q8_0: two layers are twice EAGLE-3's one.
    """

    kind: ClassVar[str] = "dflash"

    head: DFlashHeadConfig = field(default_factory=DFlashHeadConfig)
    fit: DFlashFitConfig = field(default_factory=DFlashFitConfig)
    export_type: str = with_default(RunConfig, "export_type", "q8_0")

    @property
    def own_words(self) -> list[str]:
        """See RunConfig."""
        chosen = self.head.sample_from_anchor
        return [] if chosen is None else ["--from-anchor" if chosen else "--from-mask"]
