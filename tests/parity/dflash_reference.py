"""NumPy version of DFlash, DFlash2 and DSpark: injected rows, blocks, the walk and the chain.

It reads the GGUF file by itself and shares no code with the engine, so that agreement between
the two says something. All arithmetic is float64. Written from the papers (DFlash, arXiv
2602.06036; DSpark, 2607.05147) and the public model code of z-lab/dflash, deepseek-ai/DeepSpec
and vllm-project/speculators (DFlash2's convolution and selector). RoPE and its scalings are
written from their papers: RoFormer (arXiv 2104.09864, in the half-split form of the Qwen3 model
code), position interpolation (2306.15595), YaRN (2309.00071) and Llama 3.1's model card.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tests.parity.tensor_file import Array, TensorFile

_YARN_BETA_FAST = 32.0
_YARN_BETA_SLOW = 1.0


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


def gelu(x: Array) -> Array:
    """GELU in its tanh form, which checkpoints call `gelu_pytorch_tanh`.

    On the CPU, the engine's is a table of half floats: logits of 8 (std) differ by 0.01.
    """
    result: Array = 0.5 * x * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)))
    return result


def softmax(x: Array) -> Array:
    """Softmax over the last axis; -inf gives 0."""
    weights = np.exp(x - np.max(x, axis=-1, keepdims=True))
    result: Array = weights / weights.sum(axis=-1, keepdims=True)
    return result


class Rope:
    """Half-split RoPE over the first `n_turned` numbers of a head.

    Pair i is (i, i + n_turned / 2); at position p it turns by `p * frequencies[i]`, and `scale`
    multiplies cos and sin. With `rope.dimension_sections` all pairs belong to the temporal
    section: a draft of an M-RoPE target rotates like any other.
    """

    def __init__(self, draft: TensorFile, head_size: int) -> None:
        """Read the file's keys; ValueError for a scaling without reference."""
        self.n_turned = n = int(draft.own("rope.dimension_count", head_size))
        base = float(draft.own("rope.freq_base", 10000.0))
        sections = [int(size) for size in draft.own("rope.dimension_sections", [0])]
        if any(sections[1:]):
            raise ValueError(f"rope.dimension_sections {sections}: only the first may count")
        self.frequencies: Array = base ** (-np.arange(0, n, 2) / n)
        self.scale = 1.0
        factors = draft.tensors.get("rope_freqs.weight")
        if factors is not None and not any(sections):
            self.frequencies = self.frequencies / factors[: n // 2]
        kind = draft.own("rope.scaling.type", "none")
        if kind == "linear":
            self.frequencies = self.frequencies / float(draft.own("rope.scaling.factor"))
        elif kind == "yarn":
            factor = float(draft.own("rope.scaling.factor"))
            original = float(draft.own("rope.scaling.original_context_length"))
            self._interpolate_by_parts(base, factor, original)
        elif kind != "none":
            raise ValueError(f"no reference for RoPE scaling {kind!r}")

    def _interpolate_by_parts(self, base: float, factor: float, original: float) -> None:
        """YaRN: fast pairs keep their frequency, slow ones are interpolated."""
        n = self.n_turned

        def pair_of(rotations: float) -> float:
            """The pair that turns `rotations` times within the original context."""
            return float(n * np.log(original / (rotations * 2 * np.pi)) / (2 * np.log(base)))

        low = max(np.floor(pair_of(_YARN_BETA_FAST)), 0.0)
        high = min(np.ceil(pair_of(_YARN_BETA_SLOW)), n - 1.0)
        ramp = np.clip((np.arange(n // 2) - low) / max(high - low, 0.001), 0.0, 1.0)
        self.frequencies = self.frequencies * (1.0 - ramp + ramp / factor)
        self.scale = 0.1 * float(np.log(factor)) + 1.0

    def turn(self, x: Array, positions: NDArray[np.int64]) -> Array:
        """`x` `[n_tokens, n_heads, head_size]`, turned to its tokens' `positions` `[n_tokens]`."""
        half = self.n_turned // 2
        angles = positions[:, None, None] * self.frequencies
        pairs = x[..., :half] + 1j * x[..., half : self.n_turned]
        pairs = pairs * np.exp(1j * angles) * self.scale
        out: Array = x.copy()
        out[..., :half], out[..., half : self.n_turned] = pairs.real, pairs.imag
        return out


def attend(
    q: Array, k: Array, v: Array, seen: NDArray[np.bool_], scale: float, sinks: Array | None
) -> Array:
    """Grouped-query attention: `q` `[n, heads, d]`, `k` and `v` `[m, kv heads, d]` -> as `q`.

    `seen` `[n, m]` says which key a query may look at. `sinks` `[heads]` are logits that take
    their share of the softmax and give no value.
    """
    # each K/V head serves a run of neighbouring query heads
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = np.einsum("qhd,khd->hqk", q, k) * scale
    scores[:, ~seen] = -np.inf
    if sinks is not None:
        column = np.broadcast_to(sinks[:, None, None], (*scores.shape[:2], 1))
        scores = np.concatenate([scores, column], axis=-1)
    weights = softmax(scores)[..., : len(v)]
    result: Array = np.einsum("hqk,khd->qhd", weights, v)
    return result


Ids = NDArray[np.int64]


class Walk(NamedTuple):
    """DFlash2's lattice over the slots 1, 2, ... of a block, and the path through it.

    `candidates` int64 `[n, K]`, best unary logit first; `scores` `[n, K, K]` by predecessor and
    candidate, all predecessors alike in the first slot, whose predecessor is the anchor.
    `choices` `[n]` are the path's columns, `ids = candidates[:, choices]`, and `probabilities`
    the softmax over the K scores behind the predecessor taken.
    """

    ids: list[int]
    probabilities: Array
    candidates: Ids
    scores: Array
    choices: list[int]


class Chain(NamedTuple):
    """DSpark's drafts of one block, `n` of them.

    `probabilities` `[n]` are those of the ids under the softmax over the biased logits,
    `confidences` `[n]` the confidence head's, None without one. `logits` `[n_rows, n_vocab]` has
    a row for each slot of the block: biased where a token is drafted, else as the backbone's.
    """

    ids: list[int]
    probabilities: Array
    confidences: Array | None
    logits: Array


class Reference:
    """One draft with its K/V cache, for one sequence.

    `n_embd` is the width of a row within the draft, `n_features` that of a feature row: the
    inputs of `target_layers`, one after the other. `n_vocab` is the target's vocabulary, `d2t`
    int64 `[draft vocabulary]` or None. `window[layer]` is how many positions the layer sees, the
    own one included, or None.
    """

    def __init__(self, path: Path, target_path: Path | None = None) -> None:
        """Read the draft in `path`; `target_path` lends the token embedding and output it lacks."""
        draft = TensorFile(path)
        if draft.arch != "dflash":
            raise ValueError(f"{path} has architecture {draft.arch!r}, not dflash")
        self._tensors: Mapping[str, Array] = draft.tensors
        self._read_sizes(draft)
        self._read_attention(draft)
        self.rope = Rope(draft, self._head_size)
        self.d2t = draft.d2t
        self.is_dflash2 = "selector_hidden.weight" in draft.tensors
        self.is_dspark = "markov_w1.weight" in draft.tensors
        self.from_anchor = bool(draft.own("sample_from_anchor", self.is_dspark))
        self.top_k = int(draft.own("selector_top_k", 0))
        self._taps = int(draft.own("conv_kernel_size", 0))
        self._conv_group = int(draft.own("conv_group_size", 1))
        self._borrow(draft, target_path)
        # per layer: position -> K and V, each [n_head_kv, head_size]
        self._cache: list[dict[int, tuple[Array, Array]]] = [{} for _ in range(self._n_layer)]

    def _read_sizes(self, draft: TensorFile) -> None:
        self.target_layers = [int(layer) for layer in draft.own("target_layers")]
        self.n_embd = int(draft.own("embedding_length"))
        # upstream has no key for the target's width: it is the draft's
        self.n_features = len(self.target_layers) * self.n_embd
        self.block_size = int(draft.own("block_size"))
        self.mask_token = int(draft.key("tokenizer.ggml.mask_token_id"))
        self._n_layer = int(draft.own("block_count"))
        self._n_head = int(draft.own("attention.head_count"))
        self._n_head_kv = int(draft.own("attention.head_count_kv", self._n_head))
        self._head_size = int(draft.own("attention.key_length", self.n_embd // self._n_head))
        if draft.own("attention.value_length", self._head_size) != self._head_size:
            raise ValueError("attention.key_length and attention.value_length differ")
        self._eps = float(draft.own("attention.layer_norm_rms_epsilon"))

    def _read_attention(self, draft: TensorFile) -> None:
        is_causal = [bool(draft.own("attention.causal", False))] * self._n_layer
        self.causal = [bool(one) for one in draft.own("attention.causal_pattern", is_causal)]
        width = int(draft.own("attention.sliding_window", 0))
        self.window: list[int | None] = [None] * self._n_layer
        if width:
            sliding = draft.own("attention.sliding_window_pattern")
            self.window = [width if slides else None for slides in sliding]
        scale = float(draft.own("attention.scale", 0.0))
        self._attention_scale = scale or 1.0 / float(np.sqrt(self._head_size))
        # 0 stands for no scale in all three, as for the logits'
        self._value_scale = float(draft.own("attention.value_scale", 0.0)) or 1.0
        self._embedding_scale = float(draft.own("embedding_scale", 0.0)) or 1.0
        self._logit_scale = float(draft.own("logit_scale", 0.0)) or 1.0
        self._softcap = float(draft.own("final_logit_softcapping", 0.0))
        activations: dict[str, Callable[[Array], Array]] = {
            "silu": silu,
            "gelu": gelu,
            "gelu_pytorch_tanh": gelu,
        }
        self._activation = activations[draft.own("hidden_activation", "silu")]

    def _borrow(self, draft: TensorFile, target_path: Path | None) -> None:
        own = draft.tensors
        if "token_embd.weight" in own and "output.weight" not in own:
            raise ValueError("a draft with its own token_embd.weight needs output.weight")
        lent = {} if target_path is None else TensorFile(target_path).tensors
        embedding = own.get("token_embd.weight", lent.get("token_embd.weight"))
        # the target's output may be tied to its embedding
        tied = lent.get("output.weight", lent.get("token_embd.weight"))
        output = own.get("output.weight", tied)
        if embedding is None or output is None:
            raise ValueError("neither the draft nor a target has token_embd and output")
        if embedding.shape[1] != self.n_embd or output.shape[1] != self.n_embd:
            raise ValueError(f"token_embd or output is not {self.n_embd} wide")
        self._embedding, self._output = embedding, output
        self.n_vocab = embedding.shape[0]

    def _norm(self, name: str, x: Array) -> Array:
        return rms_norm(x, self._tensors[f"{name}.weight"], self._eps)

    def _linear(self, name: str, x: Array) -> Array:
        """Apply projection `name` to the rows of `x` `[..., in]`, with its bias if it has one."""
        out: Array = x @ self._tensors[f"{name}.weight"].T
        bias = self._tensors.get(f"{name}.bias")
        return out if bias is None else out + bias

    def _keys_values(self, layer: int, x: Array, positions: Ids) -> tuple[Array, Array]:
        """K and V `[n, n_head_kv, head_size]` of the rows `x` `[n, n_embd]`."""
        blk = f"blk.{layer}.attn_"
        heads = (len(x), self._n_head_kv, self._head_size)
        k = self._linear(f"{blk}k", x).reshape(heads)
        if f"{blk}v.weight" in self._tensors:
            v = self._linear(f"{blk}v", x).reshape(heads)
        else:
            # keys serve as values (Gemma 4), normed without weights and not turned
            v = rms_norm(k, 1.0, self._eps)
        return self.rope.turn(self._norm(f"{blk}k_norm", k), positions), v

    def inject(self, rows: NDArray[np.floating], positions: Sequence[int]) -> None:
        """Store K and V of feature rows `[n, n_features]` under their positions.

        A stored position is replaced.
        """
        given: Array = np.asarray(rows, dtype=np.float64)
        if given.shape != (len(positions), self.n_features):
            raise ValueError(f"rows {given.shape} for {len(positions)} of {self.n_features}")
        x = self._norm("enc.output_norm", self._linear("fc", given))
        for layer, cache in enumerate(self._cache):
            k, v = self._keys_values(layer, x, np.asarray(positions, dtype=np.int64))
            for index, position in enumerate(positions):
                cache[int(position)] = (k[index], v[index])

    def truncate(self, n: int) -> None:
        for cache in self._cache:
            for position in [at for at in cache if at >= n]:
                del cache[position]

    @property
    def stored(self) -> list[int]:
        """The positions of the rows that are there, ascending."""
        return sorted(self._cache[0])

    def _attention(self, layer: int, x: Array, positions: Ids) -> Array:
        """The addition of attention, `[n, n_embd]`, for a block's normed rows at `positions`."""
        blk = f"blk.{layer}.attn_"
        q = self._linear(f"{blk}q", x).reshape(len(x), self._n_head, self._head_size)
        q = self.rope.turn(self._norm(f"{blk}q_norm", q), positions)
        k, v = self._keys_values(layer, x, positions)
        at = np.array([*self.stored, *positions], dtype=np.int64)
        if self.stored:
            cache = [self._cache[layer][position] for position in self.stored]
            k = np.concatenate([np.stack([key for key, _ in cache]), k])
            v = np.concatenate([np.stack([value for _, value in cache]), v])
        distance = positions[:, None] - at[None, :]
        seen = distance >= 0 if self.causal[layer] else np.ones_like(distance, dtype=bool)
        window = self.window[layer]
        if window is not None:
            seen = seen & (distance < window)
        sinks = self._tensors.get(f"{blk}sinks.weight")
        mixed = attend(q, k, v, seen, self._attention_scale, sinks).reshape(len(x), -1)
        return self._linear(f"{blk}output", mixed) * self._value_scale

    def _convolve(self, name: str, x: Array, kernels: Array, side: int) -> Array:
        """DFlash2's short convolution over a block's rows `x` `[n, n_embd]`, backwards only.

        Tap t multiplies the row t slots earlier (zero before the block) by a weight per channel
        plus one per token and group of channels: `kernels` `[n, 2, taps, groups]`.
        """
        base = self._tensors[name][side]
        out = np.zeros_like(x)
        for tap in range(min(self._taps, len(x))):
            weights = base[tap] + np.repeat(kernels[:, side, tap], self._conv_group, axis=1)
            earlier = np.concatenate([np.zeros_like(x[:tap]), x[: len(x) - tap]])
            out += weights * earlier
        return out

    def _wrapped(self, prefix: str, x: Array, inner: Callable[[Array], Array]) -> Array:
        """`inner(x)`, with a convolution before and after it where the file has one."""
        base = f"{prefix}_conv_base"
        if base not in self._tensors:
            return inner(x)
        groups = self.n_embd // self._conv_group
        kernels = self._linear(f"{prefix}_conv_proj", x).reshape(len(x), 2, self._taps, groups)
        return self._convolve(base, inner(self._convolve(base, x, kernels, 0)), kernels, 1)

    def _feed_forward(self, layer: int, x: Array) -> Array:
        blk = f"blk.{layer}.ffn_"
        gate = self._activation(self._linear(f"{blk}gate", x))
        return self._linear(f"{blk}down", gate * self._linear(f"{blk}up", x))

    def hidden(self, ids: Sequence[int], position: int) -> Array:
        """The block's normed last rows, `[n, n_embd]`; arguments as of `block`."""
        if self.stored and self.stored[-1] >= position:
            raise ValueError(f"a row is stored at {self.stored[-1]}; the block is at {position}")
        positions: Ids = np.arange(position, position + len(ids), dtype=np.int64)
        h = self._embedding[np.asarray(ids, dtype=np.int64)] * self._embedding_scale
        for layer in range(self._n_layer):
            blk = f"blk.{layer}."

            def attention(x: Array, layer: int = layer) -> Array:
                return self._attention(layer, x, positions)

            def feed_forward(x: Array, layer: int = layer) -> Array:
                return self._feed_forward(layer, x)

            a = self._wrapped(f"{blk}attn", self._norm(f"{blk}attn_norm", h), attention)
            h = h + self._post(f"{blk}post_attention_norm", a)
            f = self._wrapped(f"{blk}ffn", self._norm(f"{blk}ffn_norm", h), feed_forward)
            h = h + self._post(f"{blk}post_ffw_norm", f)
            h = h * self._tensors.get(f"{blk}layer_output_scale.weight", np.ones(1))
        return self._norm("output_norm", h)

    def _post(self, name: str, x: Array) -> Array:
        return self._norm(name, x) if f"{name}.weight" in self._tensors else x

    def _spread(self, values: Array, rest: float) -> Array:
        """`[..., draft vocabulary]` over the target's vocabulary, `rest` where `d2t` is silent."""
        if self.d2t is None:
            return values
        out: Array = np.full((*values.shape[:-1], self.n_vocab), rest)
        out[..., self.d2t] = values
        return out

    def _logits(self, y: Array) -> Array:
        logits: Array = y @ self._output.T
        logits = logits * self._logit_scale
        if self._softcap > 0:
            logits = np.tanh(logits / self._softcap) * self._softcap
        return self._spread(logits, -np.inf)

    def block(self, ids: Sequence[int], position: int) -> Array:
        """The backbone's logits, `[n, n_vocab]`, of `ids` at `position` and after it.

        The block sees all injected rows and itself, and leaves nothing behind.
        ValueError if a row is stored at or after `position`.
        """
        return self._logits(self.hidden(ids, position))

    def walk(self, ids: Sequence[int], position: int) -> Walk:
        """DFlash2: the candidates of each slot, and each pick conditioned on the one before."""
        if not self.is_dflash2:
            raise ValueError("a draft without selector")
        if len(ids) > self.block_size:
            raise ValueError(f"a block of {len(ids)}; the selector knows {self.block_size}")
        y = self.hidden(ids, position)
        logits = self._logits(y)[1:]
        candidates: Ids = np.argsort(-logits, axis=-1, kind="stable")[:, : self.top_k]
        unary = np.take_along_axis(logits, candidates, axis=-1)
        gate = self._linear("selector_hidden", y)[1:]
        successor = self._tensors["selector_successor.weight"]
        predecessor = self._tensors["selector_predecessor.weight"]
        scores: Array = np.empty((len(logits), self.top_k, self.top_k))
        for slot in range(len(logits)):
            before = candidates[slot - 1] if slot else np.full(self.top_k, ids[0])
            context = predecessor[before] * gate[slot]
            scores[slot] = unary[slot] + context @ successor[candidates[slot]].T
        choices: list[int] = []
        probabilities: list[float] = []
        for slot in range(len(logits)):
            row = scores[slot, choices[-1] if choices else 0]
            choices.append(int(np.argmax(row)))
            probabilities.append(float(softmax(row)[choices[-1]]))
        path = [int(candidates[slot, choice]) for slot, choice in enumerate(choices)]
        return Walk(path, np.array(probabilities), candidates, scores, choices)

    def chain(self, ids: Sequence[int], position: int) -> Chain:
        """DSpark: each slot's logits biased by the token before it, drafted left to right.

        No unknown token biases anything, so a shorter block has the same chain.
        """
        if not self.is_dspark:
            raise ValueError("a draft without Markov head")
        if len(ids) > self.block_size:
            raise ValueError(f"a block of {len(ids)}; the head knows {self.block_size}")
        y = self.hidden(ids, position)
        logits = self._logits(y)
        first = 0 if self.from_anchor else 1
        drafted: list[int] = []
        probabilities: list[float] = []
        confidences: list[float] = []
        for slot in range(first, len(ids)):
            before = drafted[-1] if drafted else ids[0]
            embedded = self._tensors["markov_w1.weight"][before]
            logits[slot] += self._spread(self._linear("markov_w2", embedded), 0.0)
            drafted.append(int(np.argmax(logits[slot])))
            probabilities.append(float(softmax(logits[slot])[drafted[-1]]))
            confidences.append(self._confidence(y[slot], embedded))
        has_head = "conf_proj.weight" in self._tensors
        return Chain(
            drafted, np.array(probabilities), np.array(confidences) if has_head else None, logits
        )

    def _confidence(self, row: Array, embedded: Array) -> float:
        """How sure the draft is that its token will be taken; NaN without a confidence head."""
        weight = self._tensors.get("conf_proj.weight")
        if weight is None:
            return float("nan")
        bias = self._tensors.get("conf_proj.bias", np.zeros(1))
        logit: Array = weight.reshape(-1) @ np.concatenate([row, embedded]) + bias
        return float(sigmoid(logit)[0])
