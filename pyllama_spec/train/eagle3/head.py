"""The head as a PyTorch module (docs/eagle3.md): one layer, computed for many pairs at once.

RoPE turns neighbours (2i, 2i+1) here as in the GGUF.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyllama_spec.train.run.head import DraftHead, DraftShape, draw_matrices, target_output


@dataclass(frozen=True, slots=True)
class HeadShape(DraftShape):
    """The sizes of a head; see DraftShape.

    Attributes:
        fc_norm, norm_output: options of EAGLE-3.1.
    """

    fc_norm: bool
    norm_output: bool

    @property
    def is_plain(self) -> bool:
        """Whether the head uses no option of EAGLE-3.1."""
        return not self.fc_norm and not self.norm_output

    def keys(self) -> dict[str, Any]:
        """The keys of the GGUF, without the architecture's prefix."""
        return {
            **DraftShape.keys(self),
            "block_count": 1,
            "vocab_size": self.n_vocab,
            "target_hidden_size": self.n_embd_target,
            # Only where they are on: stock llama.cpp does not know them.
            **{flag: True for flag in ("fc_norm", "norm_output") if getattr(self, flag)},
        }

    def sizes(self) -> dict[str, tuple[int, ...]]:
        """The weights' shapes by GGUF name, the output first: [n_out, n_in] or [n]."""
        d, t, n_layers = self.n_embd, self.n_embd_target, len(self.target_layers)
        return {
            "fc.weight": (d, n_layers * t),
            **{f"enc.output_norm.{i}.weight": (t,) for i in range(n_layers) if self.fc_norm},
            "blk.0.attn_norm.weight": (d,),
            "blk.0.attn_norm_2.weight": (d,),
            **self.attention_and_ffn("blk.0", 2 * d),
            "output_norm.weight": (d,),
            "output.weight": (self.n_draft_vocab, d),
        }


class Eagle3Head(DraftHead):
    """An EAGLE-3 head of one layer; see DraftHead."""

    def __init__(
        self, shape: HeadShape, embedding: npt.NDArray[np.float32], d2t: npt.NDArray[np.int64]
    ) -> None:
        super().__init__(shape, embedding, d2t)
        self.shape = shape

    def encode(self, features: Tensor) -> Tensor:
        """Encodes features as rows.

        Args:
            features: [n, n_layers * n_embd_target] float32.

        Returns:
            [n, n_embd] float32.
        """
        if self.shape.fc_norm:
            parts = features.split(self.shape.n_embd_target, dim=-1)
            normed = [
                self._norm(part, f"enc.output_norm.{i}.weight") for i, part in enumerate(parts)
            ]
            features = torch.cat(normed, dim=-1)
        return self._linear(features, "fc.weight").float()

    def mix(self, tokens: Tensor, rows: Tensor) -> Tensor:
        """The input of attention.

        Args:
            tokens: [n] int64 ids of the target, x[P+1].
            rows: [n, n_embd] float32 rows of x[P].

        Returns:
            [n, 2 * n_embd] float32.
        """
        token_half = self._norm(self.embedding[tokens], "blk.0.attn_norm.weight")
        return torch.cat((token_half, self._norm(rows, "blk.0.attn_norm_2.weight")), dim=-1)

    def queries(self, mixed: Tensor, positions: Tensor) -> Tensor:
        """The queries [n, n_head, head_size], rotated to positions [n] int64."""
        return self._turn(self._heads(mixed, "blk.0.attn_q.weight"), positions)

    def keys(self, mixed: Tensor, positions: Tensor) -> Tensor:
        """The keys [n, n_head_kv, head_size], rotated to positions [n] int64."""
        return self._turn(self._heads(mixed, "blk.0.attn_k.weight"), positions)

    def values(self, mixed: Tensor) -> Tensor:
        """The values [n, n_head_kv, head_size]."""
        return self._heads(mixed, "blk.0.attn_v.weight")

    def _turn(self, x: Tensor, positions: Tensor) -> Tensor:
        cos, sin = self._angles(positions)
        even, odd = x[..., 0::2].float(), x[..., 1::2].float()
        turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
        return turned.flatten(-2).to(x.dtype)

    def finish(self, rows: Tensor, attended: Tensor) -> tuple[Tensor, Tensor]:
        """Computes the step after attention.

        Args:
            rows: [n, n_embd] float32, see mix().
            attended: [n, n_head, head_size] mixed values.

        Returns:
            The row to pass on, and the row that gives logits: both [n, n_embd] float32.
        """
        h = rows + self._linear(attended.flatten(-2), "blk.0.attn_output.weight").float()
        h = self._feed_forward(h, "blk.0")
        y = self._norm(h, "output_norm.weight")
        return (y if self.shape.norm_output else h), y


def initialise(
    head: Eagle3Head,
    output: npt.NDArray[np.float32],
    output_norm: npt.NDArray[np.float32] | None,
    feature_rms: npt.NDArray[np.float32],
    seed: int,
) -> None:
    """Sets the initial weights.

    The last layer input passes through `fc` as it is, and the output's rows point where the
    target's do: so the head begins with what the target was about to say, and learns the step
    beyond it.

    Args:
        head: the head to initialise.
        output: [n_vocab, n_embd] float32, the target's output rows.
        output_norm: [n_embd] float32, the target's last norm, which is folded into the rows.
        feature_rms: [n_layers] float32, the RMS of each layer input.
        seed: the seed of the random weights.
    """
    shape, generator = head.shape, torch.Generator().manual_seed(seed)
    d, t = shape.n_embd, shape.n_embd_target
    names = ("attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up", "attn_output", "ffn_down")
    halved = ("attn_output", "ffn_down")
    gains = [("fc.weight", 0.1)]
    gains += [(f"blk.0.{name}.weight", 0.5 if name in halved else 1.0) for name in names]
    with torch.no_grad():
        draw_matrices(head, gains, generator)
        fc = head.weight("fc.weight")
        if d == t:
            fc[:, -t:] += torch.eye(d)
        if not shape.fc_norm:  # rows of about unit size, as normed ones are
            scale = 1.0 / np.maximum(feature_rms, 1e-6)
            fc *= torch.from_numpy(scale.astype(np.float32)).repeat_interleave(t)
        head.weight("output.weight").copy_(target_output(head, output, output_norm))
