"""EAGLE-3 heads: the head as a PyTorch module (docs/eagle3.md), its first weights, its file.

RoPE turns neighbours (2i, 2i+1) here as in the GGUF. Induction heads copy where a text repeats
itself: the row of x[P] says x[P] in its low layers, so that a query made of the token x[P+1] finds
the pairs whose row belongs to that token, and the token of such a pair is what followed. (In models
of several layers two of them do this together: arXiv 2209.11895.) Left to itself training finds it
late: on SmolLM2, after 2,379 batches, drafts were right in 47% of the places where four tokens and
what follows had been there before; a head that begins like this is so in 54% before its first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyllama_spec.engine import Model
from pyllama_spec.train.config import Eagle3TrainConfig
from pyllama_spec.train.corpus.selection import Sample
from pyllama_spec.train.run.chains import ChainHead, Pairs
from pyllama_spec.train.run.head import (
    INDUCTION_SHARE,
    MIN_R2,
    DraftShape,
    draw_matrices,
    find_tokens,
    normed,
    target_output,
    token_shares,
)
from pyllama_spec.train.run.init_draft import InitDraft, Keys, Sizes, common_sizes
from pyllama_spec.train.run.kind import ChainKind, Inputs
from pyllama_spec.train.run.target_weights import TargetWeights, default_layers

# Size of a match before the softmax, in units of its spread over other tokens, squared; and of what
# a copied token adds to a row. Both from trials on SmolLM2.
_SHARPNESS = 16.0
_STRENGTH = 6.0


@dataclass(frozen=True, slots=True)
class HeadShape(DraftShape):
    """The sizes of a head; see DraftShape."""

    is_plain: bool  # whether it has no norm of EAGLE-3.1 (arXiv 2605.09992)

    def keys(self) -> dict[str, Any]:
        """The keys of the GGUF, without the architecture's prefix."""
        return {
            **DraftShape.keys(self),
            "block_count": 1,
            "vocab_size": self.n_vocab,
            "target_hidden_size": self.n_embd,
            # Only where they are on: stock llama.cpp does not know them.
            **({} if self.is_plain else {"fc_norm": True, "norm_output": True}),
        }

    def sizes(self) -> dict[str, tuple[int, ...]]:
        """The weights' shapes by GGUF name, the output first: [n_out, n_in] or [n]."""
        d, n_layers = self.n_embd, len(self.target_layers)
        return {
            "fc.weight": (d, n_layers * d),
            **{f"enc.output_norm.{i}.weight": (d,) for i in range(n_layers) if not self.is_plain},
            "blk.0.attn_norm.weight": (d,),
            "blk.0.attn_norm_2.weight": (d,),
            **self.attention_and_ffn("blk.0", 2 * d),
            "output_norm.weight": (d,),
            "output.weight": (self.n_draft_vocab, d),
        }


class Eagle3Head(ChainHead):
    """An EAGLE-3 head of one layer; see ChainHead."""

    offset = 0

    def __init__(
        self, shape: HeadShape, embedding: npt.NDArray[np.float32], d2t: npt.NDArray[np.int64]
    ) -> None:
        super().__init__(shape, embedding, d2t)
        self.shape = shape

    def rows_of(self, features: Tensor) -> Tensor:
        """See ChainHead; features are [n, n_layers * n_embd] float32."""
        if not self.shape.is_plain:
            parts = features.split(self.shape.n_embd, dim=-1)
            normed = [
                self._norm(part, f"enc.output_norm.{i}.weight") for i, part in enumerate(parts)
            ]
            features = torch.cat(normed, dim=-1)
        return self._linear(features, "fc.weight").float()

    def pair(self, tokens: Tensor, rows: Tensor) -> Pairs:
        """See ChainHead: attention reads the norms of token and row side by side."""
        token_half = self._norm(self.embedding[tokens], "blk.0.attn_norm.weight")
        row_half = self._norm(rows, "blk.0.attn_norm_2.weight")
        return Pairs(rows, torch.cat((token_half, row_half), dim=-1))

    def queries(self, pairs: Pairs, positions: Tensor) -> tuple[Tensor, None]:
        """See ChainHead."""
        return self._turn(self._heads(pairs.read, "blk.0.attn_q.weight"), positions), None

    def keys_and_values(self, pairs: Pairs, positions: Tensor) -> tuple[Tensor, Tensor]:
        """See ChainHead."""
        keys = self._turn(self._heads(pairs.read, "blk.0.attn_k.weight"), positions)
        return keys, self._heads(pairs.read, "blk.0.attn_v.weight")

    def _turn(self, x: Tensor, positions: Tensor) -> Tensor:
        cos, sin = self._angles(positions)
        even, odd = x[..., 0::2].float(), x[..., 1::2].float()
        turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
        return turned.flatten(-2).to(x.dtype)

    def finish(
        self, pairs: Pairs, attended: Tensor, gate: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """See ChainHead."""
        h = pairs.rows
        h = h + self._linear(attended.flatten(-2), "blk.0.attn_output.weight").float()
        h = self._feed_forward(h, "blk.0")
        y = self._norm(h, "output_norm.weight")
        return (h if self.shape.is_plain else y), y


def initialise(head: Eagle3Head, weights: TargetWeights, seen: Sample, seed: int) -> None:
    """Sets the initial weights.

    The last layer input passes through `fc` as it is, and the output's rows point where the
    target's do: the head begins with what the target was about to say, and learns the step beyond
    it.
    """
    shape, generator = head.shape, torch.Generator().manual_seed(seed)
    d = shape.n_embd
    names = ("attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up", "attn_output", "ffn_down")
    halved = ("attn_output", "ffn_down")
    gains = [("fc.weight", 0.1)]
    gains += [(f"blk.0.{name}.weight", 0.5 if name in halved else 1.0) for name in names]
    with torch.no_grad():
        draw_matrices(head, gains, generator)
        fc = head.weight("fc.weight")
        fc[:, -d:] += torch.eye(d)
        if shape.is_plain:  # rows of about unit size, as normed ones are
            scale = 1.0 / np.maximum(seen.rms, 1e-6)
            fc *= torch.from_numpy(scale.astype(np.float32)).repeat_interleave(d)
        head.weight("output.weight").copy_(target_output(head, weights))


def set_induction_heads(
    head: Eagle3Head,  # initialised
    seen: Sample,
    counts: npt.NDArray[np.int64],  # [n_vocab] int64, the occurrences of each token in the text
    seed: int,  # the seed of the directions
) -> float:
    """Makes two thirds of the attention heads induction heads, if the input identifies the token.

    Each compares tokens along directions of its own, scaled to equal spread so that frequent tokens
    do not look alike, in the half of a head's numbers that RoPE turns slowest. The copied token is
    added along the widest directions of the output's rows.
    """
    shape = head.shape
    n_heads, half = max(int(INDUCTION_SHARE * shape.n_head), 1), shape.head_size // 2
    n = n_heads * half
    x = torch.from_numpy(seen.rows.astype(np.float64))
    x = x if shape.is_plain else normed(x, shape.rms_eps)
    directions, token_map, r2 = find_tokens(head, x, seen.tokens, counts, n, seed)
    if r2 < MIN_R2:
        return r2
    with torch.no_grad():
        d, used = shape.n_embd, n_heads * shape.head_size
        # The first n numbers of a row made of features say which token it belongs to.
        fc = head.weight("fc.weight")
        fc[:n] = 0
        fc[:n, :d] = token_map.float()
        slow = torch.arange(used).view(n_heads, -1)[:, half:].flatten()
        gain = math.sqrt(_SHARPNESS)
        q, k = head.weight("blk.0.attn_q.weight"), head.weight("blk.0.attn_k.weight")
        q[:used], k[:used] = 0, 0
        q[slow, :d] = gain * directions.float()
        k[slow, d : d + n] = gain * torch.eye(n)
        to_output, widest = _output_map(head, token_shares(counts), used)
        v, out = head.weight("blk.0.attn_v.weight"), head.weight("blk.0.attn_output.weight")
        v[:used] = 0
        v[:used, :d] = (widest @ to_output).float()
        out[:, :used] = _STRENGTH * widest.T.float()
    return r2


def _output_map(head: Eagle3Head, weights: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """The map [d, d] from embeddings to output rows, and the widest directions [n, d] of these."""
    d2t, embedding = head.d2t.cpu(), normed(head.embedding.double(), head.shape.rms_eps)
    output = head.weight("output.weight").detach().double()
    root = weights[d2t].sqrt()[:, None]
    x, y = embedding[d2t] * root, output * root
    eye = torch.eye(x.shape[1], dtype=torch.float64)
    solved = torch.linalg.solve(x.T @ x + 1e-6 * eye, x.T @ y).T
    vectors = torch.linalg.eigh(y.T @ y).eigenvectors
    return solved, vectors.flip(1)[:, :n].T


class Eagle3Kind(ChainKind[Eagle3Head, Eagle3TrainConfig]):
    """Heads of one layer that draft a token per step."""

    title = "EAGLE-3"
    head_class = Eagle3Head

    def __init__(self, config: Eagle3TrainConfig, model: Model) -> None:
        super().__init__(config, model)
        self.n_steps = config.fit.n_steps
        if config.head.plain:  # stock llama.cpp copies nothing
            self.copied_share = 1.0

    def notes(self, layers: tuple[int, ...]) -> list[str]:
        """A remark on options that stock llama.cpp does not load."""
        if not self.config.head.plain or len(layers) == 3:
            return []
        n = len(layers)
        return [f"stock llama.cpp takes 3 target layers, and does not load a head with {n}"]

    def shape_of(self, keys: Keys, sizes: Sizes, n_draft_vocab: int) -> HeadShape:
        """See Kind."""
        if keys["block_count"] != 1:
            raise ValueError(f"{keys['block_count']} layers instead of one")
        return HeadShape(
            n_vocab=int(keys["vocab_size"]),
            n_draft_vocab=n_draft_vocab,
            is_plain=not keys.get("norm_output", False),
            **common_sizes(keys),
        )

    def shape(self, start: Inputs) -> HeadShape:
        """See Kind."""
        return HeadShape(**self.common_sizes(start), is_plain=self.config.head.plain)

    def begin(
        self, head: Eagle3Head, weights: TargetWeights, seen: Sample,
        counts: npt.NDArray[np.int64],
    ) -> float:  # fmt: skip
        """See Kind."""
        initialise(head, weights, seen, self.config.fit.seed)
        return set_induction_heads(head, seen, counts, self.config.fit.seed)

    def known_head(self, start: Inputs, init: InitDraft) -> Eagle3Head:
        """A head for an earlier draft, trained where that is asked."""
        head = super().known_head(start, init)
        self.copied_share = 1.0 if head.shape.is_plain else type(self).copied_share
        return head

    def default_layers(self, n_layer: int) -> tuple[int, ...]:
        """See Kind."""
        return default_layers(n_layer, is_plain=self.config.head.plain)


KIND = Eagle3Kind
