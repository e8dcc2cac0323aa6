"""DFlash drafts as a PyTorch module: layers like Qwen3's, computed for many blocks at once.

Rows of features become keys and values of every layer; a block is the known token and masks, whose
rows attend to the features before it and to each other. RoPE turns number i with number
i + size / 2. A block that begins at P0 sees the features of x[0] .. x[P0], has x[P0+1] in its first
slot, and drafts x[P0+2], x[P0+3], ...: it stands where a chain of EAGLE-3 does.

Induction heads copy the token after an earlier occurrence. The row of a token x[j] shows in its
first layer input which token that is, and in its last one what the target says next, which is
x[j+1] where the text is greedy. So heads of the first layer, whose query is the known token of a
block, find the rows of that token and hand on what the target said there, in the output's own
directions. Only the slot of the known token has such a query, so it has to draft. Heads of the
second layer start by attending to the row just before the block: all that the target knew when it
chose the known token. EAGLE-3 has that row as its input; a block finds it by its position.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyllama_spec.engine import Model, Vocab
from pyllama_spec.errors import ArgumentError
from pyllama_spec.train.config import DFlashTrainConfig
from pyllama_spec.train.corpus.selection import Sample, token_counts
from pyllama_spec.train.progress import Reporter
from pyllama_spec.train.run.attention import Span, attend, spans_of
from pyllama_spec.train.run.head import (
    MIN_R2,
    DraftHead,
    DraftShape,
    draw_matrices,
    equal_directions,
    fit_token_map,
    normed,
    target_output,
)
from pyllama_spec.train.run.init_draft import InitDraft, Keys, Sizes, common_sizes
from pyllama_spec.train.run.kind import Inputs, Kind, sample_of
from pyllama_spec.train.run.objective import Step, StepLoss, by_expected_length, that_go_on
from pyllama_spec.train.run.target_weights import block_layers
from pyllama_spec.train.run.texts import Texts

# The initial scale of a layer's output, and the random part of a layer input's map.
_OUT_GAIN = 0.5
_FC_GAIN = 0.3
MASK_KEY = "tokenizer.ggml.mask_token_id"
# Rows of the embedding that are shorter than this share of the usual length were never trained:
# a norm makes noise of them.
_MIN_LENGTH = 0.1
# The share of induction heads; the others are free.
_SHARE = 2 / 3
# Weights of the norms of queries and keys: how sharp a match is. And what a copy adds to a row, and
# what is left of the drawn weights that add to it besides.
_SHARPNESS, _STRENGTH, _NOISE = 1.4, 6.0, 0.2
# What the row before the block adds to a slot, and how large the number is that tells rows of
# features from slots, before the norm that leaves its sign alone.
_LAST_ROW, _SURE = 1.0, 50.0
# The minimum share of rows; with fewer a slot looks like a row of features.
_MIN_SURE = 0.98
# The share of a depth's weight for tokens that the draft never gets right.
_ALPHA = 0.5
# Pairs of a head's numbers that tell positions: enough to be sharp, few enough to be told apart.
_PAIRS = 4


@dataclass(frozen=True, slots=True)
class DFlashShape(DraftShape):
    """The sizes of a draft; see DraftShape and DFlashHeadConfig."""

    n_layer: int  # draft layers
    block_size: int  # slots of a block
    mask_token: int  # the target's id of the token in unknown slots
    markov_rank: int  # the rank of the matrix of followers; 0 for none

    def __post_init__(self) -> None:
        DraftShape.__post_init__(self)
        if not 0 <= self.mask_token < self.n_vocab:
            raise ArgumentError(
                "mask_token", self.mask_token, f"an id from 0 to {self.n_vocab - 1}"
            )

    @property
    def first_slot(self) -> int:
        """The first slot that drafts; without followers, readers expect none of the anchor's."""
        return 0 if self.markov_rank else 1

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
            "attention.causal": False,
        }
        if self.markov_rank:
            # Both are written: readers have different defaults.
            keys |= {"sample_from_anchor": True, "has_confidence_head": False}
        return keys

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
        sizes |= {"output_norm.weight": (d,), "output.weight": (self.n_draft_vocab, d)}
        if r:
            sizes |= {
                "markov_w1.weight": (self.n_vocab, r),
                "markov_w2.weight": (self.n_draft_vocab, r),
            }
        return sizes


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

    def followers(self, tokens: Tensor) -> tuple[Tensor, Tensor] | tuple[None, None]:
        """See DraftHead."""
        if not self.shape.markov_rank:
            return None, None
        return self.weight("markov_w1.weight")[tokens], self.weight("markov_w2.weight")


def _as(pair: tuple[Tensor, Tensor], like: Tensor) -> tuple[Tensor, Tensor]:
    return pair[0].to(like.dtype), pair[1].to(like.dtype)


def _rotated(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Applies RoPE: x is [..., n_head, size], turn of DraftHead._angles()."""
    cos, sin = rotation
    low, high = x.float().chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, low * sin + high * cos), dim=-1)


def initialise(
    head: DFlashHead,
    output: npt.NDArray[np.float32],  # [n_vocab, n_embd] float32, the target's output rows
    # [n_embd] float32, the target's last norm, which is folded into the rows
    output_norm: npt.NDArray[np.float32] | None,
    # [n_layers * n_embd] float32, the RMS of each feature channel
    channel_rms: npt.NDArray[np.float32],
    seed: int,  # the seed of the random weights
) -> None:
    """Sets the initial weights.

    The last layer input passes through `fc` nearly as it is, each number of a layer input made
    alike in size: nothing norms them before. The output's rows point where the target's do. The
    outputs of the heads for followers and confidence are 0 at first.
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
        fc[:, -shape.n_embd :] += torch.eye(shape.n_embd)
        # A channel that hardly varies carries little information, however small it is.
        floor = 0.1 * np.median(channel_rms)
        fc /= torch.from_numpy(np.maximum(channel_rms, max(floor, 1e-6)).astype(np.float32))
        if shape.markov_rank:
            head.weight("markov_w2.weight").zero_()
        head.weight("output.weight").copy_(target_output(head, output, output_norm))


def block_rows(head: DFlashHead, texts: Texts) -> Tensor:
    """The rows that give logits, for the blocks from all starts: [c, n_steps, n_embd] by depth."""
    ends, owner = texts.ends()
    starts = texts.starts
    injected = head.inject(texts.features, texts.positions)
    spans = spans_of(owner[starts], starts, ends)
    rows = head.blocks(texts.tokens[starts + 1], texts.positions[starts] + 1, injected, spans)
    return rows[:, head.shape.first_slot :]


def run_blocks(head: DFlashHead, texts: Texts) -> Iterator[Step]:
    """The steps of the blocks from all starts; see that_go_on() for their ends."""
    ends, owner = texts.ends()
    rows = block_rows(head, texts)
    blocks = torch.arange(len(texts.starts), device=ends.device)
    for depth in range(head.shape.n_steps):
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
    # an initialised head whose first slot drafts, with n_head equal to n_head_kv; any other stays
    # unchanged
    head: DFlashHead,
    seen: Sample,
    counts: npt.NDArray[np.int64],  # [n_vocab] int64, the occurrences of each token in the text
    seed: int,  # the seed of the directions
) -> float:
    """Sets two thirds of the heads as induction heads that also look at the row before the block.

    Only if the first layer input identifies the token.
    """
    shape = head.shape
    d, size = shape.n_embd, shape.head_size
    if shape.first_slot or shape.n_head != shape.n_head_kv:
        return 0.0
    used = max(int(_SHARE * shape.n_head), 1) * size
    n = used // size * (size // 2)
    weights = torch.from_numpy(counts).double() + 0.1
    embedding = normed(head.embedding.double(), shape.rms_eps)
    directions = equal_directions(embedding, weights / weights.sum(), n, seed)
    scale = torch.from_numpy(np.maximum(seen.channel_rms[:d], 1e-6)).double()
    x = torch.from_numpy(seen.rows).double() / scale
    token_map, r2 = fit_token_map(x, (embedding @ directions.T)[torch.from_numpy(seen.tokens)])
    if r2 < MIN_R2:
        return r2
    weights[shape.mask_token] = weights.sum()  # as often as all others: it is in most slots
    upright = _one_of(embedding, weights)
    last = torch.from_numpy(seen.last)
    end_scale = torch.from_numpy(np.maximum(seen.channel_rms[-d:], 1e-6)).double()
    both = torch.cat((x, last.double() / end_scale), dim=1)
    one = _one_of(both, None)
    space = _Space(upright / upright.norm(), used, n, seed)
    _set_first_layer(head, space, directions, token_map / scale, last)
    with torch.no_grad():
        fc = head.weight("fc.weight")
        fc[:, :d] -= torch.outer(space.upright, one[:d] / scale).float()
        fc[:, -d:] -= torch.outer(space.upright, one[d:] / end_scale).float()
    if shape.n_layer > 1 and _is_sure(embedding, weights, upright) and _is_sure(both, None, one):
        _set_second_layer(head, space, seed)
    return r2


def _one_of(x: Tensor, weights: Tensor | None) -> Tensor:
    """The direction [width] in which rows x [m, width] are nearest to 1."""
    weights = torch.ones_like(x[:, 0]) if weights is None else weights
    gram = (x * weights[:, None]).T @ x
    ridge = 1e-3 * gram.diagonal().mean() * torch.eye(x.shape[1], dtype=x.dtype)
    return torch.linalg.solve(gram + ridge, weights @ x)


def _is_sure(x: Tensor, weights: Tensor | None, direction: Tensor) -> bool:
    """Whether nearly all rows [m, width], weighted by frequency, are on one side of it."""
    weights = torch.ones_like(x[:, 0]) if weights is None else weights
    return float(weights[x @ direction > 0].sum() / weights.sum()) >= _MIN_SURE


class _Space:
    """The directions of a row, and their initial use."""

    def __init__(self, upright: Tensor, used: int, n_token: int, seed: int) -> None:
        d = len(upright)
        generator = torch.Generator().manual_seed(seed + 1)
        drawn = torch.randn(d, d - 1, generator=generator, dtype=torch.float64)
        self.upright = upright
        self.axes = torch.linalg.qr(torch.cat((upright[:, None], drawn), dim=1)).Q[:, 1:]
        self.used, self.n_token = used, n_token
        self.n_next = min(used, d - 1 - n_token)


def _set_first_layer(
    head: DFlashHead, space: _Space, directions: Tensor, token_map: Tensor, last: Tensor
) -> None:
    """Sets the first layer and the encoding of features.

    `directions` [n, n_embd] tell tokens apart; `token_map` leads to them from the first layer
    input.
    """
    d, size, used = head.shape.n_embd, head.shape.head_size, space.used
    n, n_next = space.n_token, space.n_next
    output = head.weight("output.weight").detach().double()
    widest = torch.linalg.eigh(output.T @ output).eigenvectors.flip(1)[:, :n_next].float()
    rms = (last @ widest).square().mean().sqrt().clamp(min=1e-6)
    axes = space.axes.float()
    with torch.no_grad():
        # A row of features: which token it belongs to, and what the target said there.
        fc = head.weight("fc.weight")
        fc.zero_()
        fc[:, :d] = axes[:, :n] @ token_map.float()
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


def _set_second_layer(head: DFlashHead, space: _Space, seed: int) -> None:
    """Makes heads of the second layer copy the row before the block.

    All its queries are one vector and so are all keys of features, turned by RoPE so that a row at
    a distance of one fits best; keys of slots are the opposite.
    """
    d, size, used = head.shape.n_embd, head.shape.head_size, space.used
    n, n_next = space.n_token, space.n_next
    upright = space.upright.float()
    angles = head.frequencies[:_PAIRS].cpu()
    query, key = torch.zeros(2, size // 2), torch.zeros(2, size // 2)
    key[0, : len(angles)] = 1
    query[0, : len(angles)], query[1, : len(angles)] = angles.cos(), -angles.sin()
    n_heads = used // size
    generator = torch.Generator().manual_seed(seed + 2)
    spread = torch.linalg.qr(torch.randn(d, n_next, generator=generator)).Q
    with torch.no_grad():
        # What the first layer adds leaves this direction alone.
        for name in ("attn_output", "ffn_down"):
            out = head.weight(f"blk.0.{name}.weight")
            out -= torch.outer(upright, upright @ out)
        q, k = head.weight("blk.1.attn_q.weight"), head.weight("blk.1.attn_k.weight")
        q[:used] = _SURE * torch.outer(query.flatten().repeat(n_heads), upright)
        k[:used] = -_SURE * torch.outer(key.flatten().repeat(n_heads), upright)
        v, out = head.weight("blk.1.attn_v.weight"), head.weight("blk.1.attn_output.weight")
        v[:used], out[:, :used] = 0, 0
        v[:n_next] = space.axes[:, n : n + n_next].T.float()
        out[:, :n_next] = _LAST_ROW * spread
        for part in ("q", "k"):
            head.weight(f"blk.1.attn_{part}_norm.weight").fill_(_SHARPNESS)


class DFlashKind(Kind[DFlashHead, DFlashTrainConfig]):
    """Drafts that propose a block in one pass."""

    title = "DFlash"
    head_class = DFlashHead

    def __init__(self, config: DFlashTrainConfig, model: Model) -> None:
        super().__init__(config, model)
        self.n_steps = config.head.n_steps
        self._mask_token = 0

    def shape_of(self, keys: Keys, sizes: Sizes, n_draft_vocab: int) -> DFlashShape:
        """See Kind."""
        info = self.model.info
        return DFlashShape(
            n_vocab=info.n_vocab,
            n_draft_vocab=n_draft_vocab,
            n_layer=int(keys["block_count"]),
            block_size=int(keys["block_size"]),
            mask_token=int(keys[MASK_KEY]),
            markov_rank=sizes.get("markov_w2.weight", (0, 0))[1],
            **common_sizes(keys),
        )

    def shape(self, start: Inputs) -> DFlashShape:
        """See Kind."""
        wanted = self.config.head
        return DFlashShape(
            **self.common_sizes(start, grouped=not wanted.markov_rank),
            n_layer=wanted.n_layer,
            block_size=wanted.block_size,
            mask_token=self._mask_token,
            markov_rank=wanted.markov_rank,
        )

    def new_head(self, start: Inputs, reporter: Reporter) -> DFlashHead:
        """A head with induction heads and the target's output directions; the rest is random."""
        weights, seed = start.weights, self.config.fit.seed
        counts = token_counts(start.corpus, start.train, self.model.info.n_vocab)
        mask = choose_mask_token(self.model.vocab, counts, weights.embedding)
        self._mask_token = mask
        head = DFlashHead(self.shape(start), weights.embedding, start.vocab.d2t)
        seen = sample_of(start)
        initialise(head, weights.output, weights.output_norm, seen.channel_rms, seed)
        r2 = set_induction_heads(head, seen, counts, seed)
        if self.config.head.markov_rank:
            reporter.line(f"the first layer input explains {100 * max(r2, 0):.0f}% of its token")
        piece = self.model.vocab.piece(mask, special=True).decode("utf-8", "replace")
        reporter.line(f"mask token: {mask} ({piece!r})")
        return head

    def known_head(self, start: Inputs, init: InitDraft) -> DFlashHead:
        """A head for an earlier draft, with its block size."""
        head = super().known_head(start, init)
        self.n_steps = head.shape.n_steps
        return head

    def default_layers(self, n_layer: int) -> tuple[int, ...]:
        """See Kind."""
        return block_layers(n_layer)

    def asked(self, head: DFlashHead, texts: Texts, generator: torch.Generator) -> Texts:
        """See Kind: blocks begin at some of the positions."""
        texts = super().asked(head, texts, generator)
        return with_fewer(texts, self.config.fit.anchor_share, generator)

    def steps(self, head: DFlashHead, texts: Texts) -> Iterator[Step]:
        """See Kind."""
        return run_blocks(head, texts)

    def weighted(self, steps: Sequence[StepLoss], n_drafts: int) -> Tensor:
        """See Kind."""
        return by_expected_length(steps, n_drafts, _ALPHA)

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
