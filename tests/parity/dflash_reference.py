"""NumPy version of DFlash, DFlash2 and DSpark: injected rows, blocks, the walk and the chain.

Written from the papers (DFlash, arXiv 2602.06036; DSpark, 2607.05147) and the public model code
of z-lab/dflash, deepseek-ai/DeepSpec and vllm-project/speculators (DFlash2's additions).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tests.parity import numpy_model
from tests.parity.numpy_model import Array, Ids, attend, rms_norm, sigmoid, silu, softmax


def gelu(x: Array) -> Array:
    """GELU in its tanh form, which checkpoints call `gelu_pytorch_tanh`.

    On the CPU, the engine's is a table of half floats: logits of 8 (std) differ by 0.01.
    """
    result: Array = 0.5 * x * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)))
    return result


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


class Reference(numpy_model.Reference):
    """One draft with its K/V cache, for one sequence.

    `n_embd` is the width of a row within the draft, `n_features` that of a feature row: the
    inputs of `target_layers`, one after the other. `window[layer]` is how many positions the layer
    sees, the own one included, or None.
    """

    archs = ("dflash",)
    is_interleaved = False
    _gelu = staticmethod(gelu)

    def __init__(self, path: Path, target_path: Path | None = None, *, n_ctx: int = 512) -> None:
        super().__init__(path, target_path, n_ctx=n_ctx)
        own, tensors = self._file.own, self._tensors
        if "token_embd.weight" in tensors and "output.weight" not in tensors:
            raise ValueError("a draft with its own token_embd.weight needs output.weight")
        # upstream has no key for the target's width: it is the draft's
        self.n_features = len(own("target_layers")) * self.n_embd
        self.block_size = int(own("block_size"))
        is_causal = [bool(own("attention.causal", False))] * self._n_layer
        self.causal = [bool(one) for one in own("attention.causal_pattern", is_causal)]
        width = int(own("attention.sliding_window", 0))
        slides = own("attention.sliding_window_pattern") if width else [False] * self._n_layer
        self.window = [width if one else None for one in slides]
        # 0 stands for no scale, and for attention's default
        self._attention_scale = self._scale("attention.scale", self._head_size**-0.5)
        self._value_scale = self._scale("attention.value_scale")
        self._embedding_scale = self._scale("embedding_scale")
        self._logit_scale = self._scale("logit_scale")
        self._softcap = float(own("final_logit_softcapping", 0.0))
        self.is_dflash2 = "selector_hidden.weight" in tensors
        self.is_dspark = "markov_w1.weight" in tensors
        self.from_anchor = bool(own("sample_from_anchor", self.is_dspark))
        self.top_k = int(own("selector_top_k", 0))
        self._taps = int(own("conv_kernel_size", 0))
        self._conv_group = int(own("conv_group_size", 1))

    def _scale(self, name: str, default: float = 1.0) -> float:
        return float(self._file.own(name, 0.0)) or default

    def _activation(self, x: Array) -> Array:
        kinds = {"silu": silu, "gelu": self._gelu, "gelu_pytorch_tanh": self._gelu}
        return kinds[self._file.own("hidden_activation", "silu")](x)

    def _keys_values(self, layer: int, x: Array, positions: Ids) -> tuple[Array, Array]:
        """K and V `[n, n_head_kv, head_size]` of the rows `x` `[n, n_embd]`."""
        blk = f"blk.{layer}.attn_"
        k = self._heads(f"{blk}k", x, self._n_head_kv)
        if f"{blk}v.weight" in self._tensors:
            v = self._heads(f"{blk}v", x, self._n_head_kv)
        else:
            # keys serve as values (Gemma 4), normed without weights and not turned
            v = rms_norm(self._linear(f"{blk}k", x).reshape(k.shape), 1.0, self._eps)
        return self.rope.turn(k, positions), v

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

    @property
    def stored(self) -> list[int]:
        """The positions of the rows that are there, ascending."""
        return sorted(self._cache[0])

    def _attention(self, layer: int, x: Array, positions: Ids) -> Array:
        """The addition of attention, `[n, n_embd]`, for a block's normed rows at `positions`."""
        blk = f"blk.{layer}.attn_"
        q = self.rope.turn(self._heads(f"{blk}q", x, self._n_head), positions)
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
        mixed = attend(q, k, v, self._attention_scale, seen, sinks).reshape(len(x), -1)
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

    def hidden(self, ids: Sequence[int], position: int) -> Array:
        """The block's normed last rows, `[n, n_embd]`; arguments as of `block`."""
        if self.stored and self.stored[-1] >= position:
            raise ValueError(f"a row is stored at {self.stored[-1]}; the block is at {position}")
        positions: Ids = np.arange(position, position + len(ids), dtype=np.int64)
        h = self._embedding[np.asarray(ids, dtype=np.int64)] * self._embedding_scale
        for layer in range(self._n_layer):
            blk = f"blk.{layer}."
            attention = partial(self._attention, layer, positions=positions)
            feed_forward = partial(self._feed_forward, layer)
            a = self._wrapped(f"{blk}attn", self._norm(f"{blk}attn_norm", h), attention)
            h = h + self._post(f"{blk}post_attention_norm", a)
            f = self._wrapped(f"{blk}ffn", self._norm(f"{blk}ffn_norm", h), feed_forward)
            h = h + self._post(f"{blk}post_ffw_norm", f)
            h = h * self._tensors.get(f"{blk}layer_output_scale.weight", np.ones(1))
        return self._norm("output_norm", h)

    def _post(self, name: str, x: Array) -> Array:
        return self._norm(name, x) if f"{name}.weight" in self._tensors else x

    def _logits(self, y: Array) -> Array:
        logits = super()._logits(y) * self._logit_scale
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
