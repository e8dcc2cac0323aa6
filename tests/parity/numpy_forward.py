"""NumPy forward pass of llama and qwen2 models, written from the published equations.

It reads a GGUF file by itself and shares no code with the engine, so that agreement between
the two says something. All arithmetic is float64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class ForwardResult:
    """The results of one pass over a token sequence.

    `layer_inputs` is float64 `[n_layer + 1, n_tokens, n_embd]`: row `k` is the residual stream
    that enters layer `k`; the last row leaves the last layer, before the final norm.
    `logits` is float64 `[n_tokens, n_vocab]`.
    """

    layer_inputs: Array
    logits: Array


@dataclass(frozen=True)
class _Model:
    tensors: Mapping[str, Array]
    n_layer: int
    n_head: int
    n_head_kv: int
    eps: float
    rope_base: float
    interleaved: bool
    """RoPE pairs: neighbours (2i, 2i+1) if true, halves (i, i + d/2) if false."""


def _load(path: Path) -> _Model:
    reader = GGUFReader(path)

    def value(key: str) -> Any:
        field = reader.get_field(key)
        if field is None:
            raise KeyError(f"{path} has no key {key}")
        return field.contents()

    arch = value("general.architecture")
    if arch not in ("llama", "qwen2"):
        raise ValueError(f"no reference for architecture {arch!r}")
    tensors: dict[str, Array] = {}
    for tensor in reader.tensors:
        if tensor.tensor_type not in (GGMLQuantizationType.F32, GGMLQuantizationType.F16):
            raise ValueError(f"{tensor.name} is {tensor.tensor_type.name}, not F32 or F16")
        tensors[tensor.name] = np.array(tensor.data, dtype=np.float64)
    return _Model(
        tensors=tensors,
        n_layer=value(f"{arch}.block_count"),
        n_head=value(f"{arch}.attention.head_count"),
        n_head_kv=value(f"{arch}.attention.head_count_kv"),
        eps=value(f"{arch}.attention.layer_norm_rms_epsilon"),
        rope_base=value(f"{arch}.rope.freq_base"),
        # converters permute llama's Q and K rows for neighbouring pairs, qwen2's not
        interleaved=arch == "llama",
    )


def _rms_norm(x: Array, weight: Array, eps: float) -> Array:
    result: Array = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight
    return result


def _rope(x: Array, positions: Array, base: float, *, interleaved: bool) -> Array:
    """Rotate `x` `[n_tokens, n_heads, head_dim]` by its tokens' `positions` `[n_tokens]`."""
    half = x.shape[-1] // 2
    frequencies = base ** (-np.arange(half) / half)
    angles = positions[:, None, None] * frequencies
    cos, sin = np.cos(angles), np.sin(angles)
    first = (..., slice(0, None, 2)) if interleaved else (..., slice(0, half))
    second = (..., slice(1, None, 2)) if interleaved else (..., slice(half, None))
    out = np.empty_like(x)
    out[first] = x[first] * cos - x[second] * sin
    out[second] = x[first] * sin + x[second] * cos
    return out


def _linear(model: _Model, name: str, x: Array) -> Array:
    """Apply projection `name` (`weight` `[n_out, n_in]`, `bias` `[n_out]` if there is one)."""
    out: Array = x @ model.tensors[f"{name}.weight"].T
    bias = model.tensors.get(f"{name}.bias")
    return out if bias is None else out + bias


def _attention(model: _Model, blk: str, x: Array) -> Array:
    """Causal grouped-query self-attention over `x` `[n_tokens, n_embd]` at positions 0, 1, ..."""
    n_tokens = x.shape[0]
    positions = np.arange(n_tokens, dtype=np.float64)

    def heads(part: str, n_heads: int) -> Array:
        return _linear(model, f"{blk}attn_{part}", x).reshape(n_tokens, n_heads, -1)

    q = _rope(heads("q", model.n_head), positions, model.rope_base, interleaved=model.interleaved)
    k = _rope(
        heads("k", model.n_head_kv), positions, model.rope_base, interleaved=model.interleaved
    )
    v = heads("v", model.n_head_kv)
    # each K/V head serves a run of neighbouring query heads
    group = model.n_head // model.n_head_kv
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(q.shape[-1])
    future = np.triu(np.ones((n_tokens, n_tokens), dtype=bool), k=1)
    scores[:, future] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    mixed = np.einsum("hqk,khd->qhd", weights, v).reshape(n_tokens, -1)
    return _linear(model, f"{blk}attn_output", mixed)


def _feed_forward(model: _Model, blk: str, x: Array) -> Array:
    """SwiGLU over `x` `[n_tokens, n_embd]`."""
    gate = _linear(model, f"{blk}ffn_gate", x)
    up = _linear(model, f"{blk}ffn_up", x)
    return _linear(model, f"{blk}ffn_down", gate / (1.0 + np.exp(-gate)) * up)


def forward(path: Path, token_ids: Sequence[int]) -> ForwardResult:
    """Run the model in `path` over `token_ids`, at positions 0, 1, ..., in one sequence."""
    model = _load(path)
    tensors = model.tensors
    x = tensors["token_embd.weight"][np.asarray(token_ids, dtype=np.int64)]
    layer_inputs = [x]
    for index in range(model.n_layer):
        blk = f"blk.{index}."
        normed = _rms_norm(x, tensors[f"{blk}attn_norm.weight"], model.eps)
        x = x + _attention(model, blk, normed)
        normed = _rms_norm(x, tensors[f"{blk}ffn_norm.weight"], model.eps)
        x = x + _feed_forward(model, blk, normed)
        layer_inputs.append(x)
    final = _rms_norm(x, tensors["output_norm.weight"], model.eps)
    output = tensors.get("output.weight", tensors["token_embd.weight"])
    return ForwardResult(layer_inputs=np.stack(layer_inputs), logits=final @ output.T)
