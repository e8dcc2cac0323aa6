"""How heads with several residual streams mix them, for mtp_reference.py. Float64 throughout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tests.parity.mtp_reference import Head

Array = NDArray[np.float64]


def silu(x: Array) -> Array:
    """X * sigmoid(x)."""
    out: Array = x / (1.0 + np.exp(-x))
    return out


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x))."""
    out: Array = 1.0 / (1.0 + np.exp(-x))
    return out


def softmax(x: Array) -> Array:
    out: Array = np.exp(x - x.max()) / np.exp(x - x.max()).sum()
    return out


def mix(
    tensors: Mapping[str, Array], name: str, x: Array, eps: float
) -> tuple[Array, Array | None]:
    """One row from several streams, [n_streams, n_embd]; and the weight of each for the output."""
    norm = tensors[f"{name}norm.weight"].reshape(x.shape)
    normed = x / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + eps) * norm
    flat = normed.reshape(-1)
    gate = tensors[f"{name}up.weight"] @ silu(tensors[f"{name}down.weight"] @ flat / len(x))
    mixed = np.mean(normed / (1.0 + np.exp(-gate.reshape(x.shape))), axis=0)
    inject = tensors.get(f"{name}inject.weight")
    if inject is None:
        return mixed, None
    return mixed, 2.0 / (1.0 + np.exp(-(inject @ flat) / len(x)))


def doubly_mix(head: Head, part: str, x: Array) -> tuple[Array, Array, Array]:
    """Of several streams, [n_streams, n_embd]: one row; the next ones' shares of an output and x.

    The shares of x, [from, to], are a matrix whose rows and columns add up to one.
    """
    n, eps = len(x), head.keys["hyper_connection.epsilon"]
    mixes = head[f"hc_{part}_fn"] @ head.norm(x.reshape(-1))
    scale, base = head[f"hc_{part}_scale"], head[f"hc_{part}_base"]
    first, second, rest = np.split(mixes, [n, 2 * n])
    to_row = sigmoid(first * scale[0] + base[:n]) + eps
    of_output = 2.0 * sigmoid(second * scale[1] + base[n : 2 * n])
    shares = (rest * scale[2] + base[2 * n :]).reshape(n, n)
    shares = np.stack([softmax(row) for row in shares]) + eps
    for i in range(head.keys["hyper_connection.sinkhorn_iterations"]):
        if i:
            shares = shares / (shares.sum(axis=1, keepdims=True) + eps)
        shares = shares / (shares.sum(axis=0) + eps)
    return to_row @ x, of_output, shares


def last_mix(head: Head, x: Array) -> Array:
    """The row that deepseek4 makes of its streams before the last norm, with or without a head."""
    tensors = head.tensors
    mixes = tensors["output_hc_fn.weight"] @ head.norm(x.reshape(-1))
    shares = sigmoid(mixes * tensors["output_hc_scale.weight"] + tensors["output_hc_base.weight"])
    out: Array = (shares + head.keys["hyper_connection.epsilon"]) @ x
    return out
