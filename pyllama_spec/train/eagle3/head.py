"""The head as a PyTorch module: docs/eagle3.md, one draft layer, computed for many pairs at once.

Parameters have the names, the shapes and the order of rows of the GGUF; RoPE turns neighbours
(2i, 2i+1) here as there, so that nothing has to be reordered on the way out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

from pyllama_spec.errors import ArgumentError

# Head sizes to choose from where the target's own does not divide the width.
_HEAD_SIZES = (128, 64, 32, 16, 8, 4, 2)


@dataclass(frozen=True, slots=True)
class HeadShape:
    """The sizes of a head, all of them said.

    Attributes:
        n_vocab: the target's vocabulary.
        n_draft_vocab: tokens that it can draft.
        n_embd: width of its rows, and of the target's embedding.
        n_embd_target: width of the target's rows.
        target_layers: layer inputs that it reads.
        n_head, n_head_kv: attention heads.
        n_ff: width of the feed-forward block.
        fc_norm, norm_output: EAGLE-3.1.
        rope_base, rms_eps: constants.

    """

    n_vocab: int
    n_draft_vocab: int
    n_embd: int
    n_embd_target: int
    target_layers: tuple[int, ...]
    n_head: int
    n_head_kv: int
    n_ff: int
    fc_norm: bool
    norm_output: bool
    rope_base: float
    rms_eps: float

    def __post_init__(self) -> None:
        if self.n_embd % self.n_head or (self.n_embd // self.n_head) % 2:
            raise ArgumentError(
                f"n_head={self.n_head} does not cut a width of {self.n_embd} into heads of an even "
                "size"
            )
        if self.n_head % self.n_head_kv:
            raise ArgumentError(
                f"n_head={self.n_head} is no multiple of n_head_kv={self.n_head_kv}"
            )

    @property
    def head_size(self) -> int:
        """Numbers per attention head."""
        return self.n_embd // self.n_head

    @property
    def is_plain(self) -> bool:
        """Whether it has nothing of EAGLE-3.1."""
        return not self.fc_norm and not self.norm_output

    def as_dict(self) -> dict[str, Any]:
        """All of it, as JSON knows it."""
        return {**asdict(self), "target_layers": list(self.target_layers)}

    def sizes(self) -> dict[str, tuple[int, ...]]:
        """The weights by their names in the GGUF, with the output first: [n_out, n_in] or [n]."""
        d, t, n_layers = self.n_embd, self.n_embd_target, len(self.target_layers)
        n_q, n_kv = self.n_head * self.head_size, self.n_head_kv * self.head_size
        return {
            "fc.weight": (d, n_layers * t),
            **{f"enc.output_norm.{i}.weight": (t,) for i in range(n_layers) if self.fc_norm},
            "blk.0.attn_norm.weight": (d,),
            "blk.0.attn_norm_2.weight": (d,),
            "blk.0.attn_q.weight": (n_q, 2 * d),
            "blk.0.attn_k.weight": (n_kv, 2 * d),
            "blk.0.attn_v.weight": (n_kv, 2 * d),
            "blk.0.attn_output.weight": (d, n_q),
            "blk.0.ffn_norm.weight": (d,),
            "blk.0.ffn_gate.weight": (self.n_ff, d),
            "blk.0.ffn_up.weight": (self.n_ff, d),
            "blk.0.ffn_down.weight": (d, self.n_ff),
            "output_norm.weight": (d,),
            "output.weight": (self.n_draft_vocab, d),
        }


def default_n_head(n_embd: int, target_n_head: int) -> int:
    """The target's number where it cuts the width into even parts, else heads of 64 or fewer."""
    if target_n_head and n_embd % target_n_head == 0 and (n_embd // target_n_head) % 2 == 0:
        return target_n_head
    size = next((size for size in _HEAD_SIZES[1:] if n_embd % size == 0), 0)
    if not size:
        raise ArgumentError(f"a width of {n_embd} is odd: no attention head fits it")
    return n_embd // size


class Eagle3Head(nn.Module):
    """An EAGLE-3 head of one layer.

    Args:
        shape: its sizes.
        embedding: [n_vocab, n_embd] float32, the target's; not trained, and no part of the state.
        d2t: [n_draft_vocab] int64, the target's id of each draft id.

    """

    embedding: Tensor
    d2t: Tensor
    frequencies: Tensor

    def __init__(
        self, shape: HeadShape, embedding: npt.NDArray[np.float32], d2t: npt.NDArray[np.int64]
    ) -> None:
        super().__init__()
        self.shape = shape
        sizes = shape.sizes()
        self.weights = nn.ParameterDict(
            {_key(name): nn.Parameter(torch.ones(size)) for name, size in sizes.items()}
        )
        self._names = list(sizes)
        pairs = torch.arange(0, shape.head_size, 2, dtype=torch.float64) / shape.head_size
        # RoFormer (arXiv 2104.09864): pair i turns by base ** (-2i / size) per position.
        frequencies = (shape.rope_base**-pairs).float()
        self.register_buffer("frequencies", frequencies, persistent=False)
        self.register_buffer("embedding", torch.from_numpy(embedding), persistent=False)
        self.register_buffer("d2t", torch.from_numpy(d2t), persistent=False)

    def weight(self, name: str) -> Tensor:
        """A parameter by its name in the GGUF."""
        return self.weights[_key(name)]

    def load_tensors(self, tensors: Mapping[str, npt.NDArray[np.float32]]) -> None:
        """Sets all parameters, by their names in the GGUF."""
        with torch.no_grad():
            for name in self._names:
                self.weight(name).copy_(torch.from_numpy(tensors[name]))

    def tensors(self) -> dict[str, npt.NDArray[np.float32]]:
        """All parameters by their names in the GGUF, float32."""
        return {name: self.weight(name).detach().float().cpu().numpy() for name in self._names}

    def _norm(self, x: Tensor, name: str) -> Tensor:
        # In float32 whatever the products are computed in: the mean of squares needs it.
        x = x.float()
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + self.shape.rms_eps)
        return x * scale * self.weight(name)

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return nnf.linear(x, self.weight(name))

    def encode(self, features: Tensor) -> Tensor:
        """Rows from features.

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
        """What attention reads.

        Args:
            tokens: [n] int64 ids of the target, x[P+1].
            rows: [n, n_embd] float32 rows of x[P].

        Returns:
            [n, 2 * n_embd] float32.

        """
        token_half = self._norm(self.embedding[tokens], "blk.0.attn_norm.weight")
        return torch.cat((token_half, self._norm(rows, "blk.0.attn_norm_2.weight")), dim=-1)

    def _heads(self, x: Tensor, name: str) -> Tensor:
        return self._linear(x, name).unflatten(-1, (-1, self.shape.head_size))

    def queries(self, mixed: Tensor, positions: Tensor) -> Tensor:
        """[n, n_head, head_size], turned to positions [n] int64."""
        return self._turn(self._heads(mixed, "blk.0.attn_q.weight"), positions)

    def keys(self, mixed: Tensor, positions: Tensor) -> Tensor:
        """[n, n_head_kv, head_size], turned to positions [n] int64."""
        return self._turn(self._heads(mixed, "blk.0.attn_k.weight"), positions)

    def values(self, mixed: Tensor) -> Tensor:
        """[n, n_head_kv, head_size]."""
        return self._heads(mixed, "blk.0.attn_v.weight")

    def _turn(self, x: Tensor, positions: Tensor) -> Tensor:
        angles = positions[:, None].float() * self.frequencies
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        even, odd = x[..., 0::2].float(), x[..., 1::2].float()
        turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
        return turned.flatten(-2).to(x.dtype)

    def finish(self, rows: Tensor, attended: Tensor) -> tuple[Tensor, Tensor]:
        """The rest of the step, after attention.

        Args:
            rows: [n, n_embd] float32, as for mix().
            attended: [n, n_head, head_size] mixed values.

        Returns:
            The row that is handed on, and the one that gives logits: both [n, n_embd] float32.

        """
        h = rows + self._linear(attended.flatten(-2), "blk.0.attn_output.weight").float()
        n = self._norm(h, "blk.0.ffn_norm.weight")
        gate = nnf.silu(self._linear(n, "blk.0.ffn_gate.weight"))
        up = self._linear(n, "blk.0.ffn_up.weight")
        h = h + self._linear(gate * up, "blk.0.ffn_down.weight").float()
        y = self._norm(h, "output_norm.weight")
        return (y if self.shape.norm_output else h), y

    def logits(self, y: Tensor) -> Tensor:
        """[n, n_draft_vocab] from normed rows [n, n_embd]."""
        return self._linear(y, "output.weight")


def _key(name: str) -> str:
    # PyTorch keeps dots in names to itself.
    return name.replace(".", "/")


def initialise(
    head: Eagle3Head,
    output: npt.NDArray[np.float32],
    output_norm: npt.NDArray[np.float32] | None,
    feature_rms: npt.NDArray[np.float32],
    seed: int,
) -> None:
    """Sets the weights to begin with.

    The last layer input passes through `fc` as it is, and the output's rows point where the
    target's do: so the head begins with what the target was about to say, and learns the step
    beyond it. The rows lose what they have in common, which no softmax sees, and are scaled to
    logits of unit size: a head that is sure of what it does not know has first to unlearn that.

    Args:
        head: whose weights are set.
        output: [n_vocab, n_embd] float32, the target's output rows.
        output_norm: [n_embd] float32, the target's last norm, which goes into the rows.
        feature_rms: [n_layers] float32, the size of each layer input.
        seed: of the rest.

    """
    shape, generator = head.shape, torch.Generator().manual_seed(seed)
    d, t = shape.n_embd, shape.n_embd_target

    def normal(name: str, gain: float) -> None:
        weight = head.weight(name)
        std = gain / math.sqrt(weight.shape[1])
        weight.copy_(torch.randn(weight.shape, generator=generator) * std)

    with torch.no_grad():
        normal("fc.weight", 0.1)
        for part in ("q", "k", "v"):
            normal(f"blk.0.attn_{part}.weight", 1.0)
        for part in ("ffn_gate", "ffn_up"):
            normal(f"blk.0.{part}.weight", 1.0)
        normal("blk.0.attn_output.weight", 0.5)
        normal("blk.0.ffn_down.weight", 0.5)
        fc = head.weight("fc.weight")
        if d == t:
            fc[:, -t:] += torch.eye(d)
        if not shape.fc_norm:  # rows of about unit size, as normed ones are
            scale = 1.0 / np.maximum(feature_rms, 1e-6)
            fc *= torch.from_numpy(scale.astype(np.float32)).repeat_interleave(t)
        rows = torch.from_numpy(output)[head.d2t.cpu()]
        if output_norm is not None:
            rows = rows * torch.from_numpy(output_norm)
        rows = rows - rows.mean(0)
        rows /= rows.square().sum(1).mean().sqrt().clamp(min=1e-6)
        head.weight("output.weight").copy_(rows)
