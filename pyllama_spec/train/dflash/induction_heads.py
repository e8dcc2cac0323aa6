"""Induction heads: attention initialised to copy the token after an earlier occurrence.

The row of a token x[j] says in its first layer input which token that is, and in its last one what
the target says next, which is x[j+1] where the text is greedy. So heads of the first layer, whose
query is the known token of a block, find the rows of that token and hand on what the target said
there, in the output's own directions. Only the slot of the known token has such a query: blocks
begin like this where it drafts (sample_from_anchor). What follows two tokens later no row says, and
rows do not tell the token before theirs (R^2 0.05 on SmolLM2).

Heads of the second layer start by attending to the row just before the block, wherever it
is: all that the target knew when it chose the known token. EAGLE-3 has that row as its input; a
block has to find it by its position.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyllama_spec.train.dflash.head import DFlashHead
from pyllama_spec.train.run.token_directions import MIN_R2, equal_directions, fit_token_map, normed

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
# Pairs of a head's numbers that tell positions: enough to be sharp, few enough to be told apart.
_PAIRS = 4


def set_induction_heads(
    head: DFlashHead,
    rows: npt.NDArray[np.float32],
    tokens: npt.NDArray[np.int64],
    last: npt.NDArray[np.float32],
    counts: npt.NDArray[np.int64],
    channel_rms: npt.NDArray[np.float32],
    seed: int,
) -> float:
    """Sets two thirds of the heads as induction heads that also look at the row before the block.

    That is where the first layer input tells the token.

    Args:
        head: an initialised head whose first slot drafts, with n_head equal to n_head_kv; any other
            stays unchanged.
        rows: [n, n_embd_target] float32, the first layer input that the draft reads.
        tokens: [n] int64, the tokens of these rows.
        last: [n, n_embd_target] float32, the last layer input that it reads.
        counts: [n_vocab] int64, the occurrences of each token in the text.
        channel_rms: [n_layers * n_embd_target] float32, the RMS of each feature channel.
        seed: the seed of the directions.
    """
    shape = head.shape
    d, size = shape.n_embd, shape.head_size
    if not shape.sample_from_anchor or shape.n_head != shape.n_head_kv or d != shape.n_embd_target:
        return 0.0
    used = max(int(_SHARE * shape.n_head), 1) * size
    n = used // size * (size // 2)
    weights = torch.from_numpy(counts).double() + 0.1
    embedding = normed(head.embedding.double(), shape.rms_eps)
    directions = equal_directions(embedding, weights / weights.sum(), n, seed)
    scale = torch.from_numpy(np.maximum(channel_rms[:d], 1e-6)).double()
    x = torch.from_numpy(rows).double() / scale
    token_map, r2 = fit_token_map(x, (embedding @ directions.T)[torch.from_numpy(tokens)])
    if r2 < MIN_R2:
        return r2
    weights[shape.mask_token] = weights.sum()  # as often as all others: it is in most slots
    upright = _one_of(embedding, weights)
    end_scale = torch.from_numpy(np.maximum(channel_rms[-d:], 1e-6)).double()
    both = torch.cat((x, torch.from_numpy(last).double() / end_scale), dim=1)
    one = _one_of(both, None)
    space = _Space(upright / upright.norm(), used, n, seed)
    _set_first_layer(head, space, directions, token_map / scale, torch.from_numpy(last))
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
    """The directions of a row, and their initial use.

    Attributes:
        upright: [n_embd], a direction with slots on one side and rows of features on the other.
        axes: [n_embd, n_embd - 1], the other directions.
        used: the numbers of the initialised heads.
        n_token, n_next: the numbers of axes for the token, and for the token after it.
    """

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

    Args:
        head: the draft.
        space: the layout of a row.
        directions: [n, n_embd], the directions that distinguish tokens.
        token_map: [n, n_embd_target], the map from the first layer input to these directions.
        last: see set_induction_heads().
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
