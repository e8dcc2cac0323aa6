"""The draft as a PyTorch module: layers like Qwen3's, computed for many blocks at once.

Rows of features become keys and values of every layer (they are injected); a block is the known
token and masks, whose rows attend to the features before it and to each other. RoPE turns
number i with number i + size / 2 here as in the GGUF.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyllama_spec.errors import ArgumentError
from pyllama_spec.train.run.attention import Span, attend
from pyllama_spec.train.run.head import DraftHead, DraftShape, draw_matrices, target_output

# The initial scale of a layer's output, and the random part of a layer input's map.
_OUT_GAIN = 0.5
_FC_GAIN = 0.3


@dataclass(frozen=True, slots=True)
class DFlashShape(DraftShape):
    """The sizes of a draft; see DraftShape and DFlashHeadConfig.

    Attributes:
        n_layer: draft layers.
        block_size: slots of a block.
        mask_token: the target's id of the token in unknown slots.
        causal: whether a slot sees only those before it.
        markov_rank: the rank of the matrix of followers; 0 for none.
        confidence: whether each slot reports a confidence.
        sample_from_anchor: whether the first slot drafts.
    """

    n_layer: int
    block_size: int
    mask_token: int
    causal: bool
    markov_rank: int
    confidence: bool
    sample_from_anchor: bool

    def __post_init__(self) -> None:
        DraftShape.__post_init__(self)
        if not 0 <= self.mask_token < self.n_vocab:
            raise ArgumentError(
                "mask_token", self.mask_token, f"an id from 0 to {self.n_vocab - 1}"
            )

    @property
    def first_slot(self) -> int:
        """The first slot of a block that drafts."""
        return 0 if self.sample_from_anchor else 1

    @property
    def n_steps(self) -> int:
        """The number of tokens that a block drafts."""
        return self.block_size - self.first_slot

    def keys(self) -> dict[str, Any]:
        """The keys of the GGUF, without the architecture's prefix."""
        keys = {
            **DraftShape.keys(self),
            "block_count": self.n_layer,
            "block_size": self.block_size,
            "attention.causal": self.causal,
        }
        if self.markov_rank:
            # Both are written: readers have different defaults.
            keys["sample_from_anchor"] = self.sample_from_anchor
            keys["has_confidence_head"] = self.confidence
        return keys

    def sizes(self) -> dict[str, tuple[int, ...]]:
        """The weights' shapes by GGUF name, the output first: [n_out, n_in] or [n]."""
        d, r = self.n_embd, self.markov_rank
        sizes: dict[str, tuple[int, ...]] = {
            "fc.weight": (d, len(self.target_layers) * self.n_embd_target),
            "enc.output_norm.weight": (d,),
        }
        for i in range(self.n_layer):
            block = f"blk.{i}"
            sizes |= {
                f"{block}.attn_norm.weight": (d,),
                f"{block}.attn_q_norm.weight": (self.head_size,),
                f"{block}.attn_k_norm.weight": (self.head_size,),
                **self.attention_and_ffn(block, d),
            }
        sizes |= {"output_norm.weight": (d,), "output.weight": (self.n_draft_vocab, d)}
        if r:
            sizes |= {
                "markov_w1.weight": (self.n_vocab, r),
                "markov_w2.weight": (self.n_draft_vocab, r),
            }
        if self.confidence:
            sizes |= {"conf_proj.weight": (1, d + r), "conf_proj.bias": (1,)}
        return sizes


class DFlashHead(DraftHead):
    """A DFlash draft; see DraftHead."""

    def __init__(
        self, shape: DFlashShape, embedding: npt.NDArray[np.float32], d2t: npt.NDArray[np.int64]
    ) -> None:
        super().__init__(shape, embedding, d2t)
        self.shape = shape

    def inject(self, features: Tensor, positions: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The keys and values of features, in every layer.

        Args:
            features: [n, n_layers * n_embd_target] float32.
            positions: [n] int64.

        Returns:
            For each layer two arrays [n, n_head_kv, head_size].
        """
        rows = self._norm(self._linear(features, "fc.weight"), "enc.output_norm.weight")
        rotation = self._angles(positions)
        return [self._keys_values(rows, f"blk.{i}", rotation) for i in range(self.shape.n_layer)]

    def _keys_values(
        self, x: Tensor, block: str, rotation: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        keys = self._norm(self._heads(x, f"{block}.attn_k.weight"), f"{block}.attn_k_norm.weight")
        return _rotated(keys, rotation), self._heads(x, f"{block}.attn_v.weight")

    def blocks(
        self,
        anchors: Tensor,
        positions: Tensor,
        injected: list[tuple[Tensor, Tensor]],
        spans: list[Span],
    ) -> Tensor:
        """Computes the rows of many blocks that give logits.

        Args:
            anchors: [c] int64, the first token of each block.
            positions: [c] int64, the position of that token.
            injected: the result of inject().
            spans: the features that each block sees.

        Returns:
            [c, block_size, n_embd] float32, normalised.
        """
        shape = self.shape
        slots = torch.arange(shape.block_size, device=anchors.device)
        ids = torch.full((len(anchors), len(slots)), shape.mask_token, device=anchors.device)
        ids[:, 0] = anchors
        rotation = self._angles(positions[:, None] + slots)
        hidden = slots > slots[:, None] if shape.causal else None
        h = self.embedding[ids]
        for i in range(shape.n_layer):
            block = f"blk.{i}"
            x = self._norm(h, f"{block}.attn_norm.weight")
            q = self._heads(x, f"{block}.attn_q.weight")
            q = _rotated(self._norm(q, f"{block}.attn_q_norm.weight"), rotation)
            own = self._keys_values(x, block, rotation)
            attended = attend(q.to(own[1].dtype), _as(injected[i], own[1]), _as(own, own[1]),
                              spans, hidden)  # fmt: skip
            h = h + self._linear(attended.flatten(-2), f"{block}.attn_output.weight").float()
            h = self._feed_forward(h, block)
        return self._norm(h, "output_norm.weight")

    def followers(self, tokens: Tensor) -> Tensor | None:
        """The rows of the follower matrix for tokens [c]: [c, rank]; None without one."""
        return self.weight("markov_w1.weight")[tokens] if self.shape.markov_rank else None

    def step_logits(self, y: Tensor, before: Tensor) -> Tensor:
        """The logits of slots.

        Args:
            y: [c, n_embd], rows of blocks().
            before: [c] int64, the token before the drafted one.

        Returns:
            [c, n_draft_vocab].
        """
        logits, low = self.logits(y), self.followers(before)
        return logits if low is None else logits + self._linear(low, "markov_w2.weight")

    def confidence(self, y: Tensor, before: Tensor) -> Tensor:
        """The logit of a slot token's acceptance: [c]; see step_logits().

        It is trained, but no gradient flows into its inputs.
        """
        low = self.followers(before)
        assert low is not None
        row = torch.cat((y.detach(), low.detach().to(y.dtype)), dim=-1)
        logits: Tensor = self._linear(row, "conf_proj.weight")[:, 0] + self.weight("conf_proj.bias")
        return logits


def _as(pair: tuple[Tensor, Tensor], like: Tensor) -> tuple[Tensor, Tensor]:
    return pair[0].to(like.dtype), pair[1].to(like.dtype)


def _rotated(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Applies RoPE: x is [..., n_head, size], turn of DraftHead._angles()."""
    cos, sin = rotation
    low, high = x.float().chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, low * sin + high * cos), dim=-1)


def initialise(
    head: DFlashHead,
    output: npt.NDArray[np.float32],
    output_norm: npt.NDArray[np.float32] | None,
    channel_rms: npt.NDArray[np.float32],
    seed: int,
) -> None:
    """Sets the initial weights.

    The last layer input passes through `fc` nearly as it is, each number of a layer input made
    alike in size: nothing norms them before. The output's rows point where the target's do. The
    outputs of the heads for followers and confidence are 0 at first.

    Args:
        head: the head to initialise.
        output: [n_vocab, n_embd] float32, the target's output rows.
        output_norm: [n_embd] float32, the target's last norm, which is folded into the rows.
        channel_rms: [n_layers * n_embd_target] float32, the RMS of each feature channel.
        seed: the seed of the random weights.
    """
    shape, generator = head.shape, torch.Generator().manual_seed(seed)
    inner = ("attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up")
    gains = [("fc.weight", _FC_GAIN)]
    for i in range(shape.n_layer):
        gains += [(f"blk.{i}.{name}.weight", 1.0) for name in inner]
        gains += [(f"blk.{i}.{name}.weight", _OUT_GAIN) for name in ("attn_output", "ffn_down")]
    if shape.markov_rank:
        gains.append(("markov_w1.weight", 1.0))
    with torch.no_grad():
        draw_matrices(head, gains, generator)
        fc = head.weight("fc.weight")
        if shape.n_embd == shape.n_embd_target:
            fc[:, -shape.n_embd :] += torch.eye(shape.n_embd)
        # A channel that hardly varies carries little information, however small it is.
        floor = 0.1 * np.median(channel_rms)
        fc /= torch.from_numpy(np.maximum(channel_rms, max(floor, 1e-6)).astype(np.float32))
        for name in ("markov_w2.weight", "conf_proj.weight", "conf_proj.bias"):
            if head.has(name):
                head.weight(name).zero_()
        head.weight("output.weight").copy_(target_output(head, output, output_norm))
