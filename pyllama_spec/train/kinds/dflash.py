"""DFlash drafts: layers like Qwen3's as a PyTorch module, for many blocks at once.

Rows of features become keys and values of every layer; a block is the known token and masks, whose
rows attend to the features before it and to each other. RoPE turns number i with number
i + size / 2. A block that begins at P0 sees the features of x[0] .. x[P0], has x[P0+1] in its first
slot, and drafts x[P0+2], x[P0+3], ...: it stands where a chain of EAGLE-3 does.

Induction heads copy the token after an earlier occurrence. The row of a token x[j] shows in its
first layer input which token that is, and in its last one what the target says next, which is
x[j+1] where the text is greedy. So heads of the first layer, whose query is the known token of a
block, find the rows of that token and hand on what the target said there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyllama_spec.engine import Model, Vocab
from pyllama_spec.train.config import DFlashTrainConfig
from pyllama_spec.train.corpus.selection import Sample, token_counts
from pyllama_spec.train.run.attention import Span, attend, spans_of
from pyllama_spec.train.run.head import (
    INDUCTION_SHARE,
    MIN_R2,
    DraftHead,
    DraftShape,
    draw_matrices,
    find_tokens,
    target_output,
)
from pyllama_spec.train.run.init_draft import InitDraft, Keys, Sizes, common_sizes
from pyllama_spec.train.run.kind import Inputs, Kind
from pyllama_spec.train.run.objective import Step, that_go_on
from pyllama_spec.train.run.target_weights import TargetWeights, block_layers
from pyllama_spec.train.run.texts import Texts

# The initial scale of a layer's output, and the random part of a layer input's map.
_OUT_GAIN = 0.5
_FC_GAIN = 0.3
MASK_KEY = "tokenizer.ggml.mask_token_id"
# Rows of the embedding that are shorter than this share of the usual length were never trained:
# a norm makes noise of them.
_MIN_LENGTH = 0.1
# Weights of the norms of queries and keys: how sharp a match is. And what a copy adds to a row, and
# what is left of the drawn weights that add to it besides.
_SHARPNESS, _STRENGTH, _NOISE = 1.4, 6.0, 0.2
# The share of positions at which training starts a block, drawn anew in each batch.
_ANCHOR_SHARE = 0.5
# The rank of the matrix that adds logits for followers of the token before (DSpark, arXiv
# 2607.05147). With it the slot of the known token drafts too.
_MARKOV_RANK = 64


@dataclass(frozen=True, slots=True)
class DFlashShape(DraftShape):
    """The sizes of a draft; see DraftShape and DFlashHeadConfig."""

    n_layer: int  # draft layers
    block_size: int  # slots of a block
    mask_token: int  # the target's id of the token in unknown slots
    markov_rank: int  # the rank of the matrix of followers

    def keys(self) -> dict[str, Any]:
        """The keys of the GGUF, without the architecture's prefix."""
        return {
            **DraftShape.keys(self),
            "block_count": self.n_layer,
            "block_size": self.block_size,
            "attention.causal": False,
            # Both are written: readers have different defaults.
            "sample_from_anchor": True,
            "has_confidence_head": False,
        }

    def sizes(self) -> dict[str, tuple[int, ...]]:
        """The weights' shapes by GGUF name, the output first: [n_out, n_in] or [n]."""
        d, r = self.n_embd, self.markov_rank
        sizes: dict[str, tuple[int, ...]] = {
            "fc.weight": (d, len(self.target_layers) * d),
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
        return sizes | {
            "output_norm.weight": (d,),
            "output.weight": (self.n_draft_vocab, d),
            "markov_w1.weight": (self.n_vocab, r),
            "markov_w2.weight": (self.n_draft_vocab, r),
        }


class DFlashHead(DraftHead):
    """A DFlash draft; see DraftHead."""

    def __init__(
        self, shape: DFlashShape, embedding: npt.NDArray[np.float32], d2t: npt.NDArray[np.int64]
    ) -> None:
        super().__init__(shape, embedding, d2t)
        self.shape = shape

    def inject(self, features: Tensor, positions: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The keys and values of features, in every layer: of each two [n, n_head_kv, head_size].

        Features are [n, n_layers * n_embd] float32, positions [n] int64.
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
        anchors: Tensor,  # [c] int64, the first token of each block
        positions: Tensor,  # [c] int64, the position of that token
        injected: list[tuple[Tensor, Tensor]],  # the result of inject()
        spans: list[Span],  # the features that each block sees
    ) -> Tensor:
        """The rows of many blocks that give logits: [c, block_size, n_embd] float32, normalised."""
        shape = self.shape
        slots = torch.arange(shape.block_size, device=anchors.device)
        ids = torch.full((len(anchors), len(slots)), shape.mask_token, device=anchors.device)
        ids[:, 0] = anchors
        rotation = self._angles(positions[:, None] + slots)
        h = self.embedding[ids]
        for i in range(shape.n_layer):
            block = f"blk.{i}"
            x = self._norm(h, f"{block}.attn_norm.weight")
            q = self._heads(x, f"{block}.attn_q.weight")
            q = _rotated(self._norm(q, f"{block}.attn_q_norm.weight"), rotation)
            own = self._keys_values(x, block, rotation)
            attended = attend(q.to(own[1].dtype), _as(injected[i], own[1]), _as(own, own[1]), spans)
            h = h + self._linear(attended.flatten(-2), f"{block}.attn_output.weight").float()
            h = self._feed_forward(h, block)
        return self._norm(h, "output_norm.weight")

    def followers(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """See DraftHead."""
        return self.weight("markov_w1.weight")[tokens], self.weight("markov_w2.weight")


def _as(pair: tuple[Tensor, Tensor], like: Tensor) -> tuple[Tensor, Tensor]:
    return pair[0].to(like.dtype), pair[1].to(like.dtype)


def _rotated(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Applies RoPE: x is [..., n_head, size], turn of DraftHead._angles()."""
    cos, sin = rotation
    low, high = x.float().chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, low * sin + high * cos), dim=-1)


def initialise(head: DFlashHead, weights: TargetWeights, seen: Sample, seed: int) -> None:
    """Sets the initial weights.

    The last layer input passes through `fc` nearly as it is, each number of a layer input made
    alike in size: nothing norms them before. The output's rows point where the target's do. The
    matrix of followers adds nothing at first.
    """
    shape, generator = head.shape, torch.Generator().manual_seed(seed)
    inner = ("attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up")
    gains = [("fc.weight", _FC_GAIN)]
    for i in range(shape.n_layer):
        gains += [(f"blk.{i}.{name}.weight", 1.0) for name in inner]
        gains += [(f"blk.{i}.{name}.weight", _OUT_GAIN) for name in ("attn_output", "ffn_down")]
    gains.append(("markov_w1.weight", 1.0))
    with torch.no_grad():
        draw_matrices(head, gains, generator)
        fc = head.weight("fc.weight")
        fc[:, -shape.n_embd :] += torch.eye(shape.n_embd)
        # A channel that hardly varies carries little information, however small it is.
        size = seen.channel_rms
        floor = 0.1 * np.median(size)
        fc /= torch.from_numpy(np.maximum(size, max(floor, 1e-6)).astype(np.float32))
        head.weight("markov_w2.weight").zero_()
        head.weight("output.weight").copy_(target_output(head, weights))


def block_rows(head: DFlashHead, texts: Texts) -> Tensor:
    """The rows that give logits, for blocks from all starts: [c, block_size, n_embd] by depth."""
    ends, owner = texts.ends()
    starts = texts.starts
    injected = head.inject(texts.features, texts.positions)
    spans = spans_of(owner[starts], starts, ends)
    return head.blocks(texts.tokens[starts + 1], texts.positions[starts] + 1, injected, spans)


def run_blocks(head: DFlashHead, texts: Texts) -> Iterator[Step]:
    """The steps of the blocks from all starts; see that_go_on() for their ends."""
    ends, owner = texts.ends()
    rows = block_rows(head, texts)
    blocks = torch.arange(len(texts.starts), device=ends.device)
    for depth in range(head.shape.block_size):
        starts = texts.starts[blocks]
        step = Step(depth, blocks, rows[blocks, depth], starts + depth + 1)
        yield step
        blocks = blocks[that_go_on(step, texts, ends[owner[starts]])]
        if not len(blocks):
            return


def with_fewer(texts: Texts, share: float, generator: torch.Generator) -> Texts:
    """The same texts with a share of their blocks, at least one."""
    n = len(texts.starts)
    kept = torch.randperm(n, generator=generator)[: max(round(share * n), 1)].sort().values
    return replace(texts, starts=texts.starts[kept.to(texts.starts.device)])


def set_induction_heads(
    head: DFlashHead,  # initialised
    seen: Sample,
    counts: npt.NDArray[np.int64],  # [n_vocab] int64, the occurrences of each token in the text
    seed: int,  # the seed of the directions
) -> float:
    """Sets two thirds of the first layer's heads as induction heads, and the encoding of features.

    Only if the first layer input identifies the token: returns the R^2 of that.
    """
    shape = head.shape
    d, size = shape.n_embd, shape.head_size
    used = max(int(INDUCTION_SHARE * shape.n_head), 1) * size
    n = used // size * (size // 2)
    scale = torch.from_numpy(np.maximum(seen.channel_rms[:d], 1e-6)).double()
    x = torch.from_numpy(seen.rows).double() / scale
    directions, token_map, r2 = find_tokens(head, x, seen.tokens, counts, n, seed)
    if r2 < MIN_R2:
        return r2
    n_next, last = min(used, d - n), torch.from_numpy(seen.last)
    output = head.weight("output.weight").detach().double()
    widest = torch.linalg.eigh(output.T @ output).eigenvectors.flip(1)[:, :n_next].float()
    rms = (last @ widest).square().mean().sqrt().clamp(min=1e-6)
    generator = torch.Generator().manual_seed(seed + 1)
    axes = torch.linalg.qr(torch.randn(d, d, generator=generator, dtype=torch.float64)).Q.float()
    with torch.no_grad():
        # A row of features: which token it belongs to, and what the target said there.
        fc = head.weight("fc.weight")
        fc.zero_()
        fc[:, :d] = axes[:, :n] @ (token_map / scale).float()
        fc[:, -d:] += axes[:, n : n + n_next] @ widest.T / rms
        # In the half of a head's numbers that RoPE turns slowest: number i goes with i + size / 2.
        numbers = torch.arange(used).view(-1, 2, size // 2)
        slow = numbers[..., size // 2 - size // 4 :].reshape(len(numbers), -1).flatten()
        q, k = head.weight("blk.0.attn_q.weight"), head.weight("blk.0.attn_k.weight")
        q[:used], k[:used] = 0, 0
        q[slow] = directions[: len(slow)].float()
        k[slow] = axes[:, : len(slow)].T
        v, out = head.weight("blk.0.attn_v.weight"), head.weight("blk.0.attn_output.weight")
        v[:used] = 0
        v[:n_next] = axes[:, n : n + n_next].T
        out[:, :used] = 0
        out[:, :n_next] = _STRENGTH * widest
        for part in ("q", "k"):
            head.weight(f"blk.0.attn_{part}_norm.weight").fill_(_SHARPNESS)
        for i in range(head.shape.n_layer):
            head.weight(f"blk.{i}.ffn_down.weight").mul_(_NOISE)
            if i:
                head.weight(f"blk.{i}.attn_output.weight").mul_(_NOISE)
    return r2


class DFlashKind(Kind[DFlashHead, DFlashTrainConfig]):
    """Drafts that propose a block in one pass."""

    title = "DFlash"
    head_class = DFlashHead
    missed_share = 0.0  # Spec-AUF, arXiv 2607.01893

    def __init__(self, config: DFlashTrainConfig, model: Model) -> None:
        super().__init__(config, model)
        self.n_steps = config.head.block_size

    def shape_of(self, keys: Keys, sizes: Sizes, n_draft_vocab: int) -> DFlashShape:
        """See Kind."""
        info = self.model.info
        return DFlashShape(
            n_vocab=info.n_vocab,
            n_draft_vocab=n_draft_vocab,
            n_layer=int(keys["block_count"]),
            block_size=int(keys["block_size"]),
            mask_token=int(keys[MASK_KEY]),
            markov_rank=sizes["markov_w2.weight"][1],
            **common_sizes(keys),
        )

    def shape(self, start: Inputs) -> DFlashShape:
        """See Kind."""
        counts = token_counts(start.corpus, start.train, self.model.info.n_vocab)
        return DFlashShape(
            **self.common_sizes(start),
            n_layer=self.config.head.n_layer,
            block_size=self.n_steps,
            mask_token=choose_mask_token(self.model.vocab, counts, start.weights.embedding),
            markov_rank=_MARKOV_RANK,
        )

    def begin(
        self, head: DFlashHead, weights: TargetWeights, seen: Sample,
        counts: npt.NDArray[np.int64],
    ) -> float:  # fmt: skip
        """See Kind."""
        initialise(head, weights, seen, self.config.fit.seed)
        return set_induction_heads(head, seen, counts, self.config.fit.seed)

    def known_head(self, start: Inputs, init: InitDraft) -> DFlashHead:
        """A head for an earlier draft, with its block size."""
        head = super().known_head(start, init)
        self.n_steps = head.shape.block_size
        return head

    def default_layers(self, n_layer: int) -> tuple[int, ...]:
        """See Kind."""
        return block_layers(n_layer)

    def asked(self, texts: Texts, generator: torch.Generator) -> Texts:
        """See Kind: blocks begin at some of the positions."""
        return with_fewer(super().asked(texts, generator), _ANCHOR_SHARE, generator)

    def steps(self, head: DFlashHead, texts: Texts) -> Iterator[Step]:
        """See Kind."""
        return run_blocks(head, texts)

    def keys(self, head: DFlashHead) -> dict[str, Any]:
        """The mask token, in place of one that the target's tokenizer names."""
        return {MASK_KEY: head.shape.mask_token}


def choose_mask_token(
    vocab: Vocab, counts: npt.NDArray[np.int64], embedding: npt.NDArray[np.float32]
) -> int:
    """A token without occurrences: its row of the target's embedding becomes the mask's.

    A mask token of the vocabulary comes first, then the last control token that neither ends a text
    nor occurs in one, then the last ordinary one that does not occur, then the rarest. `counts` are
    the occurrences of each token in the text, [n_vocab] int64.
    """
    mask = vocab.special("mask")
    if mask is not None:
        return mask
    lengths = np.linalg.norm(embedding, axis=1)
    usable = lengths > _MIN_LENGTH * np.median(lengths)
    ids = np.arange(len(counts))
    control = np.array([vocab.is_control(int(t)) for t in ids])
    ending = np.array([vocab.is_eog(int(t)) for t in ids])
    starting = ids == (-1 if vocab.bos is None else vocab.bos)
    free = usable & ~ending & ~starting
    # Sorted by what matters most last: unseen, control, high.
    order = np.lexsort((ids, control, -counts, free))
    return int(order[-1])


KIND = DFlashKind
