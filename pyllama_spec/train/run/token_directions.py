"""Directions that identify a row's token, for attention to its earlier occurrences."""

from __future__ import annotations

import torch
from torch import Tensor

# The share of a token's direction that the first layer input must tell, else nothing can be found.
MIN_R2 = 0.5
_RIDGE = 1e-2


def normed(x: Tensor, eps: float) -> Tensor:
    """RMSNorm without weights."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def equal_directions(embedding: Tensor, weights: Tensor, n: int, seed: int) -> Tensor:
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


def fit_token_map(x: Tensor, y: Tensor) -> tuple[Tensor, float]:
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
