"""Induction heads: attention initialised to copy the token after an earlier occurrence.

Text repeats itself, and a draft that sees it is right for as long as it does. A head of one layer
can: the row of x[P] says x[P] in its low layers, so that a query made of the token x[P+1] finds
the pairs whose row belongs to that same token, and the token of such a pair is what followed. (In
models of several layers two of them do this together: "induction heads", arXiv 2209.11895.) Left
to itself training finds it late: on SmolLM2, after 2,379 batches, drafts were right in 47% of the
places where four tokens and what follows had been there before, and a head that begins like this
is so in 54% before its first batch.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyllama_spec.train.eagle3.head import Eagle3Head
from pyllama_spec.train.run.token_directions import MIN_R2, equal_directions, fit_token_map, normed

# The share of induction heads; the others are free.
_SHARE = 2 / 3
# Size of a match before the softmax, in units of its spread over other tokens, squared; and of what
# a copied token adds to a row. Both from trials on SmolLM2.
_SHARPNESS = 16.0
_STRENGTH = 6.0


def set_induction_heads(
    head: Eagle3Head,
    rows: npt.NDArray[np.float32],
    tokens: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int64],
    seed: int,
) -> float:
    """Makes two thirds of the attention heads induction heads, if the input tells the token.

    Each of them compares tokens along directions of its own, which are scaled to equal spread so
    that frequent tokens do not look alike. Queries and keys are in the half of a head's numbers
    that RoPE turns slowest. The copied token is added along the widest directions of the output's
    rows.

    Args:
        head: an initialised head with n_head equal to n_head_kv; any other stays unchanged.
        rows: [n, n_embd_target] float32, the first layer input that the head reads, at some tokens.
        tokens: [n] int64, these tokens.
        counts: [n_vocab] int64, the occurrences of each token in the text.
        seed: the seed of the directions.
    """
    shape = head.shape
    if shape.n_head != shape.n_head_kv or shape.n_embd != shape.n_embd_target:
        return 0.0
    n_heads, half = max(int(_SHARE * shape.n_head), 1), shape.head_size // 2
    n = n_heads * half
    embedding = normed(head.embedding.double(), shape.rms_eps)
    weights = torch.from_numpy(counts).double() + 0.1
    weights /= weights.sum()
    directions = equal_directions(embedding, weights, n, seed)
    token_map, r2 = _fit(head, rows, tokens, embedding @ directions.T)
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
        to_output, widest = _output_map(head, embedding, weights, used)
        v, out = head.weight("blk.0.attn_v.weight"), head.weight("blk.0.attn_output.weight")
        v[:used] = 0
        v[:used, :d] = (widest @ to_output).float()
        out[:, :used] = _STRENGTH * widest.T.float()
    return r2


def _fit(
    head: Eagle3Head, rows: npt.NDArray[np.float32], tokens: npt.NDArray[np.int64], wanted: Tensor
) -> tuple[Tensor, float]:
    """The map [n, n_embd_target] from the first layer input to `wanted`, and its R^2."""
    x = torch.from_numpy(rows.astype(np.float64))
    if head.shape.fc_norm:
        x = normed(x, head.shape.rms_eps)
    return fit_token_map(x, wanted[torch.from_numpy(tokens)])


def _output_map(
    head: Eagle3Head, embedding: Tensor, weights: Tensor, n: int
) -> tuple[Tensor, Tensor]:
    """The map [d, d] from embeddings to output rows, and the widest directions [n, d] of these."""
    d2t = head.d2t.cpu()
    output = head.weight("output.weight").detach().double()
    root = weights[d2t].sqrt()[:, None]
    x, y = embedding[d2t] * root, output * root
    eye = torch.eye(x.shape[1], dtype=torch.float64)
    solved = torch.linalg.solve(x.T @ x + 1e-6 * eye, x.T @ y).T
    vectors = torch.linalg.eigh(y.T @ y).eigenvectors
    return solved, vectors.flip(1)[:, :n].T
