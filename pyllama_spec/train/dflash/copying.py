"""Attention heads that begin by copying what the target said after this token the last time.

The row of a token x[j] says in its first layer input which token that is, and in its last one what
the target says next, which is x[j+1] where the text is greedy. So heads of the first layer, whose
query is the known token of a block, find the rows of that token and hand on what the target said
there, in the output's own directions. Only the slot of the known token has such a query: blocks
begin like this where it drafts (sample_from_anchor). What follows two tokens later no row says, and
rows do not tell the token before theirs (R^2 0.05 on SmolLM2).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyllama_spec.train.dflash.head import DFlashHead
from pyllama_spec.train.run.token_directions import MIN_TOLD, equal_directions, normed, told_map

# Of the heads; the others are free for all else.
_SHARE = 2 / 3
# Weights of the norms of queries and keys: how sharp a match is. And what a copy adds to a row, and
# what is left of the drawn weights that add to it besides.
_SHARPNESS, _STRENGTH, _NOISE = 1.4, 6.0, 0.2


def begin_with_copying(
    head: DFlashHead,
    rows: npt.NDArray[np.float32],
    tokens: npt.NDArray[np.int64],
    last: npt.NDArray[np.float32],
    counts: npt.NDArray[np.int64],
    channel_rms: npt.NDArray[np.float32],
    seed: int,
) -> float:
    """Lets two thirds of the first layer's heads copy, if the first layer input tells the token.

    Args:
        head: initialised; its first slot drafts, and n_head is n_head_kv, else nothing is done.
        rows: [n, n_embd_target] float32, the first layer input that the draft reads.
        tokens: [n] int64, the tokens of these rows.
        last: [n, n_embd_target] float32, the last layer input that it reads.
        counts: [n_vocab] int64, how often each token stands in the text.
        channel_rms: [n_layers * n_embd_target] float32, the size of each number of a feature.
        seed: of the directions.

    Returns:
        The share of the tokens' directions that the first layer input tells; below 0.5 nothing is
        changed.

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
    told, share = told_map(x, (embedding @ directions.T)[torch.from_numpy(tokens)])
    if share < MIN_TOLD:
        return share
    _set(head, directions, told / scale, torch.from_numpy(last))
    return share


def _set(head: DFlashHead, directions: Tensor, told: Tensor, last: Tensor) -> None:
    """Sets the weights.

    Args:
        head: the draft.
        directions: [n, n_embd], by which tokens are told apart.
        told: [n, n_embd_target], the map from the first layer input to them.
        last: as for begin_with_copying().

    """
    d, n, size = head.shape.n_embd, len(directions), head.shape.head_size
    used = n // (size // 2) * size
    output = head.weight("output.weight").detach().double()
    n_said = min(used, d - n)
    widest = torch.linalg.eigh(output.T @ output).eigenvectors.flip(1)[:, :n_said].float()
    said = (last @ widest).square().mean().sqrt().clamp(min=1e-6)
    with torch.no_grad():
        # A row of features: first which token it belongs to, then what the target said there.
        fc = head.weight("fc.weight")
        fc.zero_()
        fc[:n, :d] = told.float()
        fc[n : n + n_said, -d:] = widest.T / said
        # In the half of a head's numbers that RoPE turns slowest: number i goes with i + size / 2.
        numbers = torch.arange(used).view(-1, 2, size // 2)
        slow = numbers[..., size // 2 - size // 4 :].reshape(len(numbers), -1).flatten()
        q, k = head.weight("blk.0.attn_q.weight"), head.weight("blk.0.attn_k.weight")
        q[:used], k[:used] = 0, 0
        q[slow] = directions[: len(slow)].float()
        k[slow, : len(slow)] = torch.eye(len(slow))
        v, out = head.weight("blk.0.attn_v.weight"), head.weight("blk.0.attn_output.weight")
        v[:used] = 0
        v[:n_said, n : n + n_said] = torch.eye(n_said)
        out[:, :used] = 0
        out[:, :n_said] = _STRENGTH * widest
        for part in ("q", "k"):
            head.weight(f"blk.0.attn_{part}_norm.weight").fill_(_SHARPNESS)
        for i in range(head.shape.n_layer):
            head.weight(f"blk.{i}.ffn_down.weight").mul_(_NOISE)
            if i:
                head.weight(f"blk.{i}.attn_output.weight").mul_(_NOISE)
