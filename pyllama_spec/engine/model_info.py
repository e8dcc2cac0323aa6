"""The facts of a model file: sizes, kinds, and the extras of a draft's file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class DraftBlock(NamedTuple):
    """How a draft predicts the tokens of a block at once.

    Attributes:
        n_slots: slots of a block in training, that of the last known token included.
        mask_id: the token in a slot to predict.
        n_window: how many positions back the layers attend; None for no bound.
        sample_from_anchor: whether each slot, the first included, predicts the next token; else its
            own.
        has_confidence: whether it reports a confidence for each prediction.
    """

    n_slots: int
    mask_id: int
    n_window: int | None
    sample_from_anchor: bool
    has_confidence: bool

    @property
    def max_draft(self) -> int:
        """The maximum number of tokens that a block drafts."""
        return self.n_slots if self.sample_from_anchor else self.n_slots - 1


class HeadWeights(NamedTuple):
    """Facts of the weights of a loaded MTP head.

    Attributes:
        n_bytes: bytes of its weights, without the output matrix if that is the target's.
        type: the type of most weights, by the engine's name.
    """

    n_bytes: int
    type: str


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Sizes and kinds as read from the file.

    n_heads is the number of MTP heads according to the file; has_head means that they were loaded
    and can draft; is_head_alone, that the file has no other layers.
    """

    arch: str
    n_vocab: int
    n_embd: int
    n_embd_inp: int
    n_embd_out: int
    n_layer: int
    n_head: int
    n_head_kv: int
    n_ctx_train: int
    n_swa: int
    n_params: int
    size_bytes: int
    has_encoder: bool
    has_decoder: bool
    is_recurrent: bool
    is_hybrid: bool
    is_diffusion: bool
    can_roll_back: bool
    n_device_layers: int
    n_target_layers: int
    n_heads: int
    has_head: bool
    is_head_alone: bool
    state_bytes: int
    snapshot_base_bytes: int
    snapshot_token_bytes: int
    repacked_bytes: int

    @property
    def has_recurrent_state(self) -> bool:
        """Whether past tokens are in a recurrent state, which cannot be cut by position."""
        return self.is_recurrent or self.is_hybrid

    @property
    def size(self) -> str:
        """The number of parameters in three digits: 135M, 1.54B."""
        n = int(float(f"{self.n_params:.3g}"))
        for unit, name in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
            if n >= unit:
                return f"{n / unit:.3g}{name}"
        return str(n)
