"""What the NumPy references share: a GGUF file, norms, RoPE and attention, all in float64.

The references share no code with the engine, so that agreement between the two says something.
RoPE and its scalings are written from their papers: RoFormer (arXiv 2104.09864, with neighbouring
pairs or with the halves of the Qwen3 model code), position interpolation (2306.15595), YaRN
(2309.00071), Llama 3.1's and Phi-3's model cards.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize
from numpy.typing import NDArray

Array = NDArray[np.float64]
Ids = NDArray[np.int64]

_YARN_BETA_FAST = 32.0
_YARN_BETA_SLOW = 1.0


class TensorFile:
    """Keys and tensors of one GGUF file; matrices are float64 `[out, in]`, `d2t` is int64."""

    def __init__(self, path: Path) -> None:
        self._reader = GGUFReader(path)
        self.path = path
        self.arch = str(self.key("general.architecture", ""))
        self.tensors: dict[str, Array] = {}
        self.d2t: Ids | None = None
        for tensor in self._reader.tensors:
            if tensor.name.startswith("ngram."):
                continue  # no part of what is computed
            if tensor.tensor_type == GGMLQuantizationType.I64:
                if tensor.name != "d2t":
                    raise ValueError(f"{tensor.name} is I64; only d2t may be")
                self.d2t = np.array(tensor.data, dtype=np.int64)
            else:
                values = dequantize(tensor.data, tensor.tensor_type)
                self.tensors[tensor.name] = np.array(values, dtype=np.float64)

    def key(self, name: str, default: Any = None) -> Any:
        """The key's value; `default` where the file lacks it, KeyError where that is None."""
        field = self._reader.get_field(name)
        if field is not None:
            return field.contents()
        if default is None:
            raise KeyError(f"{self.path} has no key {name}")
        return default

    def own(self, suffix: str, default: Any = None) -> Any:
        return self.key(f"{self.arch}.{suffix}", default)

    def own_keys(self) -> dict[str, Any]:
        """All keys of the architecture, without its prefix."""
        prefix = f"{self.arch}."
        fields = self._reader.fields.items()
        return {
            name.removeprefix(prefix): field.contents()
            for name, field in fields
            if name.startswith(prefix)
        }


def rms_norm(x: Array, weight: Array | float, eps: float) -> Array:
    """Root-mean-square norm over the last axis of `x` `[..., size]`."""
    result: Array = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight
    return result


def sigmoid(x: Array) -> Array:
    """The logistic function; by tanh, which does not overflow."""
    result: Array = 0.5 * (1.0 + np.tanh(0.5 * x))
    return result


def silu(x: Array) -> Array:
    result: Array = x * sigmoid(x)
    return result


def softmax(x: Array) -> Array:
    """Softmax over the last axis; -inf gives 0."""
    weights = np.exp(x - np.max(x, axis=-1, keepdims=True))
    result: Array = weights / weights.sum(axis=-1, keepdims=True)
    return result


def attend(
    q: Array,
    k: Array,
    v: Array,
    scale: float,
    seen: NDArray[np.bool_] | None = None,
    sinks: Array | None = None,
) -> Array:
    """Grouped-query attention: `q` `[n, heads, d]`, `k` and `v` `[m, kv heads, d]` -> as `q`.

    `seen` `[n, m]` says which key a query may look at. `sinks` `[heads]` are logits that take
    their share of the softmax and give no value.
    """
    # each K/V head serves a run of neighbouring query heads
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = np.einsum("qhd,khd->hqk", q, k) * scale
    if seen is not None:
        scores[:, ~seen] = -np.inf
    if sinks is not None:
        column = np.broadcast_to(sinks[:, None, None], (*scores.shape[:2], 1))
        scores = np.concatenate([scores, column], axis=-1)
    weights = softmax(scores)[..., : len(v)]
    result: Array = np.einsum("hqk,khd->qhd", weights, v)
    return result


class Rope:
    """RoPE over the first `2 * len(frequencies)` numbers of a head.

    At position p pair i turns by `p * frequencies[i]`, and `scale` multiplies cos and sin. A pair
    is two neighbours if `is_interleaved`, else (i, i + half). With `rope.dimension_sections` all
    pairs belong to the temporal section: a draft of an M-RoPE target rotates like any other.
    longrope chooses its factors by `n_ctx`, the context's length.
    """

    def __init__(
        self, file: TensorFile, head_size: int, *, is_interleaved: bool, n_ctx: int = 0
    ) -> None:
        n = int(file.own("rope.dimension_count", head_size))
        self.base = float(file.own("rope.freq_base", 10000.0))
        sections = [int(size) for size in file.own("rope.dimension_sections", [0])]
        if any(sections[1:]):
            raise ValueError(f"rope.dimension_sections {sections}: only the first may count")
        self.factor = float(file.own("rope.scaling.factor", 1.0))
        self.frequencies: Array = self.base ** (-np.arange(0, n, 2) / n)
        self.scale = 1.0
        factors = file.tensors.get("rope_freqs.weight")
        if factors is not None and not any(sections):
            self.frequencies = self.frequencies / factors[: n // 2]
        self._scale_frequencies(file, n_ctx)
        self._first = slice(0, n, 2) if is_interleaved else slice(0, n // 2)
        self._second = slice(1, n, 2) if is_interleaved else slice(n // 2, n)

    def _scale_frequencies(self, file: TensorFile, n_ctx: int) -> None:
        kind = file.own("rope.scaling.type", "none")
        if kind == "linear":
            self.frequencies = self.frequencies / self.factor
        elif kind == "yarn":
            self._interpolate_by_parts(float(file.own("rope.scaling.original_context_length")))
        elif kind == "longrope":
            is_long = n_ctx > file.own("rope.scaling.original_context_length")
            part = "long" if is_long else "short"
            self.frequencies = self.frequencies / file.tensors[f"rope_factors_{part}.weight"]
            self.scale = float(file.own("rope.scaling.attn_factor", 1.0))
        elif kind != "none":
            raise ValueError(f"no reference for RoPE scaling {kind!r}")

    def _interpolate_by_parts(self, original: float) -> None:
        """YaRN: fast pairs keep their frequency, slow ones are interpolated."""
        n = 2 * len(self.frequencies)

        def pair_of(rotations: float) -> float:
            """The pair that turns `rotations` times within the original context."""
            turns = np.log(original / (rotations * 2 * np.pi))
            return float(n * turns / (2 * np.log(self.base)))

        low = max(np.floor(pair_of(_YARN_BETA_FAST)), 0.0)
        high = min(np.ceil(pair_of(_YARN_BETA_SLOW)), n - 1.0)
        ramp = np.clip((np.arange(n // 2) - low) / max(high - low, 0.001), 0.0, 1.0)
        self.frequencies = self.frequencies * (1.0 - ramp + ramp / self.factor)
        self.scale = 0.1 * float(np.log(self.factor)) + 1.0

    def angles(self, positions: Ids) -> Array:
        """The angle of each pair at each position, `[n_tokens, n_pairs]`."""
        result: Array = positions[:, None] * self.frequencies
        return result

    def turn(self, x: Array, positions: Ids | Sequence[int]) -> Array:
        """`x` `[n_tokens, n_heads, head_size]`, turned to its tokens' `positions` `[n_tokens]`."""
        turns = np.exp(1j * self.angles(np.asarray(positions, np.int64)))[:, None] * self.scale
        pairs = (x[..., self._first] + 1j * x[..., self._second]) * turns
        out: Array = x.copy()
        out[..., self._first], out[..., self._second] = pairs.real, pairs.imag
        return out


class Float32Rope(Rope):
    """Angles as the engine's kernels make them: each pair's from the one before, in float32."""

    fused = True
    """Whether the compiler made one instruction of a product and a sum, as CPUs with FMA allow."""

    def angles(self, positions: Ids) -> Array:
        n_pairs = len(self.frequencies)
        step = np.power(np.float32(self.base), np.float32(-1.0 / n_pairs))
        # What stretches each pair: 1 where there is no scaling.
        stretch = self.base ** (-np.arange(n_pairs) / n_pairs) / self.frequencies
        out, theta = np.empty((len(positions), n_pairs)), positions.astype(np.float32)
        for i in range(n_pairs):
            out[:, i] = self._stretched(theta, float(stretch[i]))
            theta = (theta * step).astype(np.float32)
        return out

    def _stretched(self, theta: NDArray[np.float32], stretch: float) -> NDArray[np.float32]:
        one = np.float32(1.0)
        if self.factor == 1.0 or stretch in (1.0, self.factor):
            same: NDArray[np.float32] = theta / np.float32(stretch)
            return same
        # Between: YaRN mixes the stretched angle with the other.
        mix = one - np.float32((1.0 - 1.0 / stretch) / (1.0 - 1.0 / self.factor))
        stretched, product = theta / np.float32(self.factor), theta * mix
        wide = np.float64 if self.fused else np.float32
        sum_: NDArray[Any] = stretched.astype(wide) * wide(one - mix) + product.astype(wide)
        rounded: NDArray[np.float32] = sum_.astype(np.float32)
        return rounded


class Reference:
    """The weights and sizes of a model in a file, and the keys and values that it remembers.

    A draft borrows the token embedding and the output that it lacks from the file of its target.
    `n_vocab` is the target's vocabulary, `d2t` int64 `[draft vocabulary]` or None.
    """

    archs: tuple[str, ...]
    is_interleaved: bool
    rope_kind: type[Rope] = Rope

    def __init__(self, path: Path, target_path: Path | None = None, *, n_ctx: int = 512) -> None:
        file = TensorFile(path)
        if file.arch not in self.archs:
            raise ValueError(f"{path} has architecture {file.arch!r}: no reference")
        self._file, self._tensors = file, file.tensors
        self.n_embd = int(file.own("embedding_length"))
        self._n_layer = int(file.own("block_count"))
        self._n_head = int(file.own("attention.head_count"))
        self._n_head_kv = int(file.own("attention.head_count_kv", self._n_head))
        self._head_size = int(file.own("attention.key_length", self.n_embd // self._n_head))
        if file.own("attention.value_length", self._head_size) != self._head_size:
            raise ValueError("attention.key_length and attention.value_length differ")
        self._eps = float(file.own("attention.layer_norm_rms_epsilon"))
        self.rope = self.rope_kind(
            file, self._head_size, is_interleaved=self.is_interleaved, n_ctx=n_ctx
        )
        self.d2t = file.d2t
        lent = {} if target_path is None else TensorFile(target_path).tensors
        self._embedding = {**lent, **file.tensors}["token_embd.weight"]
        # A target's output may be tied to its embedding.
        tied = {"output.weight": self._embedding} if target_path is None else {
            "output.weight": lent["token_embd.weight"]
        }  # fmt: skip
        self._output = {**tied, **lent, **file.tensors}["output.weight"]
        for name, matrix in (("token_embd", self._embedding), ("output", self._output)):
            if matrix.shape[1] != self.n_embd:
                raise ValueError(f"{name} is {matrix.shape[1]} wide, the draft {self.n_embd}")
        self.n_vocab = int(file.own("vocab_size", len(self._embedding)))
        # per layer: position -> K and V, each [n_head_kv, head_size]
        self._cache: list[dict[int, tuple[Array, Array]]] = [{} for _ in range(self._n_layer)]

    def truncate(self, n: int) -> None:
        for cache in self._cache:
            for position in [at for at in cache if at >= n]:
                del cache[position]

    def _norm(self, name: str, x: Array) -> Array:
        return rms_norm(x, self._tensors[f"{name}.weight"], self._eps)

    def _linear(self, name: str, x: Array) -> Array:
        """Apply projection `name` to the rows of `x` `[..., in]`, with its bias if it has one."""
        out: Array = x @ self._tensors[f"{name}.weight"].T
        bias = self._tensors.get(f"{name}.bias")
        return out if bias is None else out + bias

    def _heads(self, name: str, x: Array, n_head: int) -> Array:
        """A projection of `x` `[n, in]`, `[n, n_head, size]`; normed if there is such a norm."""
        out = self._linear(name, x).reshape(len(x), n_head, -1)
        return self._norm(f"{name}_norm", out) if f"{name}_norm.weight" in self._tensors else out

    def _activation(self, x: Array) -> Array:
        return silu(x)

    def _feed_forward(self, layer: int, x: Array) -> Array:
        """The gated block's addition to the residual, for normed rows."""
        blk = f"blk.{layer}.ffn_"
        gate = self._activation(self._linear(f"{blk}gate", x))
        return self._linear(f"{blk}down", gate * self._linear(f"{blk}up", x))

    def _spread(self, values: Array, rest: float) -> Array:
        """`[..., draft vocabulary]` over the target's vocabulary, `rest` where `d2t` is silent."""
        if self.d2t is None:
            return values
        out: Array = np.full((*values.shape[:-1], self.n_vocab), rest)
        out[..., self.d2t] = values
        return out

    def _logits(self, y: Array) -> Array:
        logits: Array = y @ self._output.T
        return logits


class _Llama(Reference):
    archs = ("llama",)
    # Converters permute llama's Q and K rows for neighbouring pairs, qwen2's not.
    is_interleaved = True


class _Qwen2(Reference):
    archs = ("qwen2",)
    is_interleaved = False


def forward(path: Path, token_ids: Sequence[int]) -> tuple[Array, Array]:
    """A llama or qwen2 over a text at positions 0, 1, ..., from the published equations.

    Returns:
        The layer inputs `[n_layer + 1, n_tokens, n_embd]` (row k enters layer k, and the last one
        leaves the last layer, before the final norm), and the logits `[n_tokens, n_vocab]`.

    """
    kind = _Llama if TensorFile(path).arch == "llama" else _Qwen2
    m, n = kind(path), len(token_ids)
    x, positions = m._embedding[np.asarray(token_ids)], np.arange(n)
    layer_inputs = [x]
    for layer in range(m._n_layer):
        blk = f"blk.{layer}."
        normed = m._norm(f"{blk}attn_norm", x)
        q, k, v = (
            m._heads(f"{blk}attn_{part}", normed, n_head)
            for part, n_head in (("q", m._n_head), ("k", m._n_head_kv), ("v", m._n_head_kv))
        )
        q, k = m.rope.turn(q, positions), m.rope.turn(k, positions)
        seen = np.tril(np.ones((n, n), bool))
        found = attend(q, k, v, 1.0 / np.sqrt(m._head_size), seen)
        x = x + m._linear(f"{blk}attn_output", found.reshape(n, -1))
        x = x + m._feed_forward(layer, m._norm(f"{blk}ffn_norm", x))
        layer_inputs.append(x)
    return np.stack(layer_inputs), m._logits(m._norm("output_norm", x))


def apart(a: NDArray[Any], b: NDArray[Any]) -> float:
    """The largest difference; the same numbers must be finite."""
    assert a.shape == b.shape
    assert np.array_equal(np.isfinite(a), np.isfinite(b))
    there = np.isfinite(b)
    assert there.any()
    return float(np.abs(a[there] - b[there]).max())
