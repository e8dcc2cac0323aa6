"""The base of the PyTorch modules of all kinds of drafts.

Parameters have the names, the shapes and the order of rows of the GGUF, so that nothing has to be
reordered on the way out.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

from pyllama_spec.errors import ArgumentError
from pyllama_spec.train.run.target_weights import TargetWeights

# The share of a token's direction that the first layer input must tell, else nothing can be found.
MIN_R2 = 0.5
# The share of induction heads; the others are free.
INDUCTION_SHARE = 2 / 3
_RIDGE = 1e-2


def normed(x: Tensor, eps: float) -> Tensor:
    """RMSNorm without weights."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def find_tokens(
    head: DraftHead,
    x: Tensor,  # [m, width] float64, what tells a token
    tokens: npt.NDArray[np.int64],  # [m] int64, the token of each row
    counts: npt.NDArray[np.int64],  # [n_vocab] int64, the occurrences of each token in the text
    n: int,
    seed: int,
) -> tuple[Tensor, Tensor, float]:
    """Directions [n, n_embd] that tell tokens apart, the map [n, width] from x to them, its R^2."""
    embedding = normed(head.embedding.double(), head.sizes.rms_eps)
    directions = _equal_directions(embedding, token_shares(counts), n, seed)
    token_map, r2 = _fit_token_map(x, (embedding @ directions.T)[torch.from_numpy(tokens)])
    return directions, token_map, r2


def token_shares(counts: npt.NDArray[np.int64]) -> Tensor:
    """The share of each token in the text, [n_vocab]; none is 0."""
    weights = torch.from_numpy(counts).double() + 0.1
    return weights / weights.sum()


def _equal_directions(embedding: Tensor, weights: Tensor, n: int, seed: int) -> Tensor:
    """[n, n_embd]: the tokens' widest directions, each scaled to a spread of 1, and mixed.

    None has a component along the tokens' mean, which distinguishes no token.
    """
    mean = weights @ embedding
    centred = embedding - mean
    values, vectors = torch.linalg.eigh((centred * weights[:, None]).T @ centred)
    values, vectors = values.flip(0)[:n], vectors.flip(1)[:, :n]
    vectors = vectors - torch.outer(mean, mean @ vectors) / mean.square().sum().clamp(min=1e-12)
    scaled = (vectors / values.clamp(min=1e-6 * float(values[0])).sqrt()).T
    generator = torch.Generator().manual_seed(seed)
    mix = torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64)).Q
    mixed: Tensor = mix @ scaled
    return mixed


def _fit_token_map(x: Tensor, y: Tensor) -> tuple[Tensor, float]:
    """The linear map [n, width] from rows x [m, width] to y [m, n], and its R^2.

    This is R^2 on the last fifth of the rows, which are held out.
    """
    n_fit = max(len(x) * 4 // 5, 1)
    fit_x, fit_y = x[:n_fit], y[:n_fit]
    ridge = _RIDGE * n_fit * fit_x.square().mean().clamp(min=1e-12)
    eye = torch.eye(x.shape[1], dtype=torch.float64)
    solved = torch.linalg.solve(fit_x.T @ fit_x + ridge * eye, fit_x.T @ fit_y)
    rest = y[n_fit:]
    missed = (x[n_fit:] @ solved - rest).square().mean()
    spread = (rest - rest.mean(0)).square().mean()
    r2 = 1 - float(missed / spread.clamp(min=1e-12)) if len(rest) else 0.0
    return solved.T, r2


# Head sizes to choose from where the target's own does not divide the width.
_HEAD_SIZES = (128, 64, 32, 16, 8, 4, 2)


@dataclass(frozen=True, slots=True)
class DraftShape(ABC):
    """The sizes of a draft, without defaults."""

    n_vocab: int  # the target's vocabulary
    n_draft_vocab: int  # the number of tokens that it can draft
    n_embd: int  # width of its rows, and of the target's
    target_layers: tuple[int, ...]  # the layer inputs that it reads
    n_head: int  # attention heads
    n_head_kv: int
    n_ff: int  # width of its feed-forward blocks
    rope_base: float  # constants
    rms_eps: float

    @property
    def head_size(self) -> int:
        """The size of an attention head."""
        return self.n_embd // self.n_head

    def keys(self) -> dict[str, Any]:
        """The GGUF keys common to all kinds of draft, without the architecture's prefix."""
        return {
            "embedding_length": self.n_embd,
            "feed_forward_length": self.n_ff,
            "attention.head_count": self.n_head,
            "attention.head_count_kv": self.n_head_kv,
            "attention.key_length": self.head_size,
            "attention.value_length": self.head_size,
            "attention.layer_norm_rms_epsilon": self.rms_eps,
            "rope.dimension_count": self.head_size,
            "rope.freq_base": self.rope_base,
            "target_layers": list(self.target_layers),
        }

    def attention_and_ffn(self, block: str, n_read: int) -> dict[str, tuple[int, ...]]:
        """The matrix shapes of one layer by GGUF name."""
        d, n_kv = self.n_embd, self.n_head_kv * self.head_size
        return {
            f"{block}.attn_q.weight": (self.n_head * self.head_size, n_read),
            f"{block}.attn_k.weight": (n_kv, n_read),
            f"{block}.attn_v.weight": (n_kv, n_read),
            f"{block}.attn_output.weight": (d, self.n_head * self.head_size),
            f"{block}.ffn_norm.weight": (d,),
            f"{block}.ffn_gate.weight": (self.n_ff, d),
            f"{block}.ffn_up.weight": (self.n_ff, d),
            f"{block}.ffn_down.weight": (d, self.n_ff),
        }

    @abstractmethod
    def sizes(self) -> dict[str, tuple[int, ...]]:
        """The weights' shapes by GGUF name, the output first: [n_out, n_in] or [n]."""


def default_n_head(n_embd: int, target_n_head: int) -> int:
    """The target's number of heads if it divides the width, else for heads of size 64 or less."""
    if target_n_head and n_embd % target_n_head == 0 and (n_embd // target_n_head) % 2 == 0:
        return target_n_head
    size = next((size for size in _HEAD_SIZES[1:] if n_embd % size == 0), 0)
    if not size:
        raise ArgumentError("n_embd", n_embd, "an even width, which attention heads fit")
    return n_embd // size


class DraftHead(nn.Module):
    """The weights of a draft by GGUF name, and the common parts of transformers.

    The embedding, [n_vocab, n_embd], is the target's: not trained, and not saved in the state.
    """

    embedding: Tensor
    d2t: Tensor
    frequencies: Tensor

    def __init__(
        self, shape: DraftShape, embedding: npt.NDArray[np.float32], d2t: npt.NDArray[np.int64]
    ) -> None:
        super().__init__()
        self.sizes = shape
        sizes = shape.sizes()
        self.weights = nn.ParameterDict(
            {_key(name): nn.Parameter(torch.ones(size)) for name, size in sizes.items()}
        )
        self.weight("output.weight").requires_grad_(False)  # the target's
        self._names = list(sizes)
        pairs = torch.arange(0, shape.head_size, 2, dtype=torch.float64) / shape.head_size
        # RoFormer (arXiv 2104.09864): pair i turns by base ** (-2i / size) per position.
        frequencies = (shape.rope_base**-pairs).float()
        self.register_buffer("frequencies", frequencies, persistent=False)
        self.register_buffer("embedding", torch.from_numpy(embedding), persistent=False)
        self.register_buffer("d2t", torch.from_numpy(d2t), persistent=False)

    def weight(self, name: str) -> Tensor:
        """A parameter by its GGUF name."""
        return self.weights[_key(name)]

    def load_tensors(self, tensors: Mapping[str, npt.NDArray[np.float32]]) -> None:
        """Sets parameters by GGUF name."""
        with torch.no_grad():
            for name, values in tensors.items():
                self.weight(name).copy_(torch.from_numpy(values))

    def tensors(self) -> dict[str, npt.NDArray[np.float32]]:
        """All parameters by GGUF name, float32."""
        return {name: self.weight(name).detach().float().cpu().numpy() for name in self._names}

    def _norm(self, x: Tensor, name: str) -> Tensor:
        # In float32 whatever the products are computed in: the mean of squares needs it.
        x = x.float()
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + self.sizes.rms_eps)
        return x * scale * self.weight(name)

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return nnf.linear(x, self.weight(name))

    def _heads(self, x: Tensor, name: str) -> Tensor:
        return self._linear(x, name).unflatten(-1, (-1, self.sizes.head_size))

    def _angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """The cosines and sines for positions [...]: [..., 1, size / 2], equal for all heads."""
        angles = positions[..., None, None].float() * self.frequencies
        return angles.cos(), angles.sin()

    def _feed_forward(self, h: Tensor, block: str) -> Tensor:
        n = self._norm(h, f"{block}.ffn_norm.weight")
        gate = nnf.silu(self._linear(n, f"{block}.ffn_gate.weight"))
        up = self._linear(n, f"{block}.ffn_up.weight")
        return h + self._linear(gate * up, f"{block}.ffn_down.weight").float()

    def followers(self, tokens: Tensor) -> tuple[Tensor, Tensor] | tuple[None, None]:
        """What adds to the logits after tokens [c]: rows [c, rank], and the matrix of all ids."""
        return None, None

    def logits(self, y: Tensor, before: Tensor) -> Tensor:
        """The logits [c, n_draft_vocab] of normed rows [c, n_embd] after tokens [c]."""
        logits = self._linear(y, "output.weight")
        low, matrix = self.followers(before)
        return logits if low is None or matrix is None else logits + nnf.linear(low, matrix)


def _key(name: str) -> str:
    # PyTorch keeps dots in names to itself.
    return name.replace(".", "/")


def draw_matrices(
    head: DraftHead, gains: Iterable[tuple[str, float]], generator: torch.Generator
) -> None:
    """Fills matrices with normal random numbers that scale a row of unit size to `gain`."""
    for name, gain in gains:
        weight = head.weight(name)
        std = gain / math.sqrt(weight.shape[1])
        weight.copy_(torch.randn(weight.shape, generator=generator) * std)


def target_output(head: DraftHead, weights: TargetWeights) -> Tensor:
    """The target's output rows of the draft vocabulary, [n_draft_vocab, n_embd].

    They lose what they have in common, which no softmax sees, and are scaled to logits of unit
    size: a head that is sure without reason would first have to unlearn that. The target's last
    norm is folded in.
    """
    rows = torch.from_numpy(weights.output)[head.d2t.cpu()]
    if weights.output_norm is not None:
        rows = rows * torch.from_numpy(weights.output_norm)
    rows = rows - rows.mean(0)
    rows /= rows.square().sum(1).mean().sqrt().clamp(min=1e-6)
    return rows
