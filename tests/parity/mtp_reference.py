"""NumPy forward pass of MTP heads, written from the models' published code. Float64 throughout.

It reads the GGUF by itself and shares nothing with the engine. A head is one block behind the
layers: it norms the embedding of a token and a row, joins them by a matrix, goes through its block
with the memory of the pairs before, and norms; that is its row, and the output matrix gives the
logits of the next token but one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.parity.numpy_model import Array, TensorFile, attend, rms_norm, sigmoid, silu, softmax

Pair = tuple[Array, Array]


def mix(
    tensors: Mapping[str, Array], name: str, x: Array, eps: float
) -> tuple[Array, Array | None]:
    """One row from several streams, [n_streams, n_embd]; and the weight of each for the output."""
    normed = rms_norm(x, tensors[f"{name}norm.weight"].reshape(x.shape), eps)
    flat = normed.reshape(-1)
    gate = tensors[f"{name}up.weight"] @ silu(tensors[f"{name}down.weight"] @ flat / len(x))
    mixed: Array = np.mean(normed * sigmoid(gate.reshape(x.shape)), axis=0)
    inject = tensors.get(f"{name}inject.weight")
    return mixed, None if inject is None else 2.0 * sigmoid(inject @ flat / len(x))


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
    shares = softmax(shares) + eps
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


@dataclass
class Head:
    """A head with what it remembers.

    Attributes:
        arch: the architecture.
        keys: the keys of the file, without the architecture's prefix.
        tensors: all tensors of the file.
        blk: the prefix of the head's tensors.
        memory: keys and values of each pair so far, each [n_heads, width].
        index_keys: the indexer's position and key of each pair, if it has one.

    """

    arch: str
    keys: Mapping[str, Any]
    tensors: Mapping[str, Array]
    blk: str
    memory: list[tuple[Array, Array]] = field(default_factory=list)
    index_keys: list[tuple[int, Array]] = field(default_factory=list)

    def key(self, name: str, default: Any = None) -> Any:
        """A key; of a list with a value for each layer that of the head's block."""
        value = self.keys.get(name, default)
        return value[int(self.blk.split(".")[1])] if isinstance(value, list) else value

    @property
    def has_window(self) -> bool:
        """Whether the head attends to the last pairs alone."""
        return self.arch == "deepseek4" or bool(self.key("attention.sliding_window_pattern", False))

    def __getitem__(self, name: str) -> Array:
        return self.tensors[f"{self.blk}{name}.weight"]

    def has(self, name: str) -> bool:
        return f"{self.blk}{name}.weight" in self.tensors

    def norm(self, x: Array, weight: Array | float = 1.0) -> Array:
        return rms_norm(x, weight, self.keys["attention.layer_norm_rms_epsilon"])

    def layer_norm(self, x: Array, weight: Array, bias: Array | float = 0.0) -> Array:
        centred = x - x.mean()
        deviation = np.sqrt(np.mean(centred**2) + self.keys["attention.layer_norm_epsilon"])
        out: Array = centred / deviation * weight + bias
        return out

    def rope(
        self, x: Array, position: int, *, interleaved: bool = False, n_rot: int | None = None,
        base: str = "rope.freq_base", factors: Array | float = 1.0,
    ) -> Array:  # fmt: skip
        """Rotate the first n_rot numbers of each head, [n_heads, width], by a position."""
        n_rot = n_rot or self.keys["rope.dimension_count"]
        half = n_rot // 2
        # An angle of float32 is off by 0.002 at 40,000, and ggml multiplies from pair to pair: the
        # same is done here, so that what is compared is not that.
        ratio = np.float32(self.keys[base] ** (-1.0 / half))
        steps = np.array([position, *[ratio] * (half - 1)], np.float32)
        turns = np.cumprod(steps, dtype=np.float32) / np.asarray(factors, np.float32)
        angles = turns.astype(np.float64)
        cos, sin = np.cos(angles), np.sin(angles)
        first = slice(0, n_rot, 2) if interleaved else slice(0, half)
        second = slice(1, n_rot, 2) if interleaved else slice(half, n_rot)
        out: Array = x.copy()
        out[:, first] = x[:, first] * cos - x[:, second] * sin
        out[:, second] = x[:, first] * sin + x[:, second] * cos
        return out

    def attend(
        self, q: Array, k: Array, v: Array, scale: float, sinks: Array | None = None,
        seen: Sequence[int] | None = None,
    ) -> Array:  # fmt: skip
        """Remembers k and v, [n_kv, width], and attends over all so far: [n_head, width of v].

        With a window only over the last pairs, or over the visible ones, by their order; sinks are
        scores, [n_head], without a value.
        """
        self.memory.append((k, v))
        pairs = self.memory
        if self.has_window:
            pairs = pairs[-self.keys["attention.sliding_window"] :]
        if seen is not None:
            pairs = [pairs[i] for i in seen]
        keys, values = (np.stack(part) for part in zip(*pairs, strict=True))
        found: Array = attend(q[None], keys, values, scale, sinks=sinks)[0]
        return found

    def step(self, token: int, row: Array, position: int) -> tuple[Array, Array]:
        """The logits, [n_vocab], and the head's own row, [n_embd], of a pair at a position."""
        table = self["nextn.embed_tokens"] if self.has("nextn.embed_tokens") else self.tensors[
            "token_embd.weight"
        ]  # fmt: skip
        e = self.norm(table[token], self["nextn.enorm"])
        if len(row) > len(e):  # several streams side by side, with a norm for all or one for each
            streams = row.reshape(-1, len(e))
            h = self.norm(streams, self["nextn.hnorm"].reshape(-1, len(e)))
            x = np.stack([self["nextn.eh_proj"] @ np.concatenate((e, one)) for one in h])
            return _STREAM_BLOCKS[self.arch](self, x, position)
        h = self.norm(row, self["nextn.hnorm"])
        x = self["nextn.eh_proj"] @ np.concatenate((e, h))
        return _block(self, x, position)

    def logits(self, normed: Array) -> Array:
        """The logits from the output matrix and a row after the last norm."""
        name = "nextn.shared_head_head"
        output = self[name] if self.has(name) else self.tensors["output.weight"]
        out: Array = output @ normed * self.keys.get("logit_scale", 1.0)
        return out

    def last_norm(self, x: Array) -> Array:
        """The norm before the output: the head's own, else the target's."""
        if self.arch == "nemotron_h_moe":  # of another kind than all others
            return self.layer_norm(x, self["nextn.shared_head_norm"])
        for own in ("nextn.shared_head_norm", "layer_output_norm"):
            if self.has(own):
                return self.norm(x, self[own])
        return self.norm(x, self.tensors["output_norm.weight"])


def load(path: Path) -> Head:
    return load_all(path)[0]


def load_all(path: Path) -> list[Head]:
    file = TensorFile(path)
    keys = file.own_keys()
    n_layer = keys["block_count"] - keys["nextn_predict_layers"]
    numbers = range(n_layer, keys["block_count"])
    return [Head(file.arch, keys, file.tensors, f"blk.{i}.") for i in numbers]


def chain_of_heads(
    heads: Sequence[Head], tokens: Sequence[int], rows: Array, first: int
) -> tuple[list[Array], list[int], list[Array]]:
    """Logits of the tokens that several heads draft in turn, these, and the heads' own rows.

    Each head has read all pairs with rows of the target, and after them the guesses of the earlier
    heads; for the arguments see chain().
    """
    seen: list[Array] = []
    drafted: list[int] = []
    own: list[Array] = []
    for head in heads:
        pairs = [*zip(tokens, rows, strict=True), *zip(drafted, own, strict=True)]
        for i, (token, row) in enumerate(pairs):
            logits, last = head.step(token, row, first + i)
        seen.append(logits)
        drafted.append(int(np.argmax(logits)))
        own.append(last)
    return seen, drafted, own


def chain(
    head: Head, tokens: Sequence[int], rows: Array, first: int, n_steps: int
) -> tuple[list[Array], list[int]]:
    """Logits of a chain of drafted tokens, and these.

    Args:
        head: a head with an empty memory.
        tokens: the tokens of the pairs.
        rows: the rows of the pairs.  # [len(tokens), n_row]
        first: the position of the first pair.
        n_steps: how many tokens to draft, each by the greatest logit.

    """
    for i, token in enumerate(tokens):
        logits, row = head.step(token, rows[i], first + i)
    seen, drafted = [logits], [int(np.argmax(logits))]
    for i in range(n_steps - 1):
        logits, row = head.step(drafted[-1], row, first + len(tokens) + i)
        seen.append(logits)
        drafted.append(int(np.argmax(logits)))
    return seen, drafted


# Those that bound what is gated with, and the others bound the gate.
_BOUNDS_BEFORE = ("deepseek4", "glm5-next")


def bounded(head: Head, gate: Array, up: Array, key: str) -> Array:
    """SwiGLU of the two products; with a limit neither factor is greater."""
    limit = head.key(key)
    if not limit:
        return silu(gate) * up
    is_before = head.arch in _BOUNDS_BEFORE
    first = silu(np.minimum(gate, limit)) if is_before else np.minimum(silu(gate), limit)
    out: Array = first * np.clip(up, -limit, limit)
    return out


def gated_ffn(head: Head, x: Array, part: str = "ffn_{}") -> Array:
    """SwiGLU with the matrices of a name."""
    gate, up, down = (head[part.format(name)] for name in ("gate", "up", "down"))
    return down @ bounded(head, gate @ x, up @ x, "swiglu_clamp_shexp")


def squared(x: Array) -> Array:
    out: Array = np.maximum(x, 0.0) ** 2
    return out


_GATES: dict[int, Callable[[Array], Array]] = {
    1: softmax,
    2: sigmoid,
    4: lambda router: np.sqrt(np.log1p(np.exp(router))),
}


def experts(head: Head, x: Array) -> Array:
    """The routed experts, weighted as the file says, without the shared ones."""
    router: Array = head["ffn_gate_inp"] @ x
    p = _GATES[head.keys.get("expert_gating_func", 1)](router)
    bias: Array | float = 0.0
    for name in ("exp_probs_b.bias", "exp_probs_b"):
        bias = head.tensors.get(f"{head.blk}{name}", bias)
    chosen = np.argsort(p + bias)[-head.keys["expert_used_count"] :]
    weights = p[chosen]
    # Qwen's are always normed.
    if head.keys.get("expert_weights_norm", head.has("ffn_gate_inp_shexp")):
        weights = weights / weights.sum()
    weights = weights * head.keys.get("expert_weights_scale", 1.0)
    up, down = head["ffn_up_exps"], head["ffn_down_exps"]
    out = np.zeros_like(x)
    for i, weight in zip(chosen, weights, strict=True):
        # Of two matrices, with a squared relu between, where there is no gate.
        inner = squared(up[i] @ x)
        if head.has("ffn_gate_exps"):
            gate = head["ffn_gate_exps"][i] @ x
            inner = bounded(head, gate, up[i] @ x, "swiglu_clamp_exp")
        out += weight * (down[i] @ inner)
    return out


def feed_forward(head: Head, x: Array) -> Array:
    """A dense block, or routed experts and a shared one, which Qwen's gate weights."""
    if not head.has("ffn_gate_inp"):
        return gated_ffn(head, x)
    if not head.has("ffn_gate_shexp"):
        return experts(head, x) + head["ffn_down_shexp"] @ squared(head["ffn_up_shexp"] @ x)
    shared = gated_ffn(head, x, "ffn_{}_shexp")
    if head.has("ffn_gate_inp_shexp"):
        shared = shared * sigmoid(head["ffn_gate_inp_shexp"] @ x)
    return experts(head, x) + shared


def _gated_attention(
    head: Head, x: Array, position: int, seen: Sequence[int] | None = None
) -> Array:
    """Qwen3-Next's: each head's query is followed by a gate for what it finds."""
    n_head, n_kv = head.keys["attention.head_count"], head.keys["attention.head_count_kv"]
    width = head.keys["attention.key_length"]
    q, gate = np.split((head["attn_q"] @ x).reshape(n_head, 2 * width), 2, axis=1)
    k, v = ((head[f"attn_{part}"] @ x).reshape(n_kv, width) for part in "kv")
    q = head.rope(head.norm(q, head["attn_q_norm"]), position)
    k = head.rope(head.norm(k, head["attn_k_norm"]), position)
    found = head.attend(q, k, v, 1.0 / np.sqrt(width), seen=seen) * sigmoid(gate)
    return head["attn_output"] @ found.reshape(-1)


def _latent_attention(
    head: Head, x: Array, position: int, seen: Sequence[int] | None = None
) -> Array:
    """DeepSeek's: all heads attend to one latent row, into which their queries are taken."""
    n_head, rank = head.keys["attention.head_count"], head.keys["attention.kv_lora_rank"]
    n_rot, width = head.keys["rope.dimension_count"], head.keys["attention.key_length_mla"]
    if head.has("attn_q"):
        q = head["attn_q"] @ x
    else:
        q = head["attn_q_b"] @ head.norm(head["attn_q_a"] @ x, head["attn_q_a_norm"])
    plain, turned = np.split(q.reshape(n_head, width), [width - n_rot], axis=1)
    latent, k = np.split(head["attn_kv_a_mqa"] @ x, [rank])
    latent = head.norm(latent, head["attn_kv_a_norm"])
    if n_rot:
        k = head.rope(k[None], position, interleaved=True)[0]
        turned = head.rope(turned, position, interleaved=True)
    absorbed = np.einsum("hrn,hn->hr", head["attn_k_b"], plain)
    found = head.attend(
        np.concatenate((absorbed, turned), axis=1), np.concatenate((latent, k))[None],
        latent[None], 1.0 / np.sqrt(width), seen=seen,
    )  # fmt: skip
    values: Array = np.einsum("hvr,hr->hv", head["attn_v_b"], found)
    if head.has("attn_gate"):
        values = values * sigmoid(head["attn_gate"] @ x)[:, None]
    out: Array = head["attn_output"] @ values.reshape(-1)
    return out


def _pooled_attention(head: Head, x: Array, position: int) -> Array:
    return _latent_attention(head, x, position, _chosen_pools(head, x, position))


def _attention(
    head: Head, x: Array, position: int, *, interleaved: bool = False, turns: bool = True
) -> Array:
    """Grouped queries; with biases and norms of heads where the file has them."""
    n_head, n_kv = head.keys["attention.head_count"], head.key("attention.head_count_kv")

    def project(part: str, n: int) -> Array:
        bias = head.tensors.get(f"{head.blk}attn_{part}.bias", 0.0)
        out: Array = (head[f"attn_{part}"] @ x + bias).reshape(n, -1)
        return out

    q, k, v = project("q", n_head), project("k", n_kv), project("v", n_kv)
    if head.has("attn_q_norm"):
        q, k = head.norm(q, head["attn_q_norm"]), head.norm(k, head["attn_k_norm"])
    if turns:
        q, k = (head.rope(part, position, interleaved=interleaved) for part in (q, k))
    return head["attn_output"] @ head.attend(q, k, v, 1.0 / np.sqrt(q.shape[1])).reshape(-1)


def _step35_attention(head: Head, x: Array, position: int) -> Array:
    """With a window, attention rotates all of each head; without one, half, by slower angles."""
    n_head, n_kv = head.keys["attention.head_count"], head.keys["attention.head_count_kv"]
    q, k, v = (
        (head[f"attn_{part}"] @ x).reshape(n, -1)
        for part, n in zip("qkv", (n_head, n_kv, n_kv), strict=True)
    )
    q, k = head.norm(q, head["attn_q_norm"]), head.norm(k, head["attn_k_norm"])
    n_rot = head.keys["rope.dimension_count"]
    if head.has_window:
        q, k = (head.rope(part, position, base="rope.freq_base_swa") for part in (q, k))
    else:
        slower = head.tensors["rope_freqs.weight"][: n_rot // 4]
        q, k = (head.rope(part, position, n_rot=n_rot // 2, factors=slower) for part in (q, k))
    found = head.attend(q, k, v, 1.0 / np.sqrt(q.shape[1]))
    found = found * sigmoid(head["attn_gate"] @ x)[:, None]
    return head["attn_output"] @ found.reshape(-1)


def _mimo2_attention(head: Head, x: Array, position: int) -> Array:
    """Keys wider than values, sinks, and a scale on what is found."""
    n_head, n_kv = head.keys["attention.head_count"], head.key("attention.head_count_kv")
    width, narrow = head.keys["attention.key_length"], head.keys["attention.value_length"]
    q, k, v = np.split(head["attn_qkv"] @ x, [n_head * width, (n_head + n_kv) * width])
    base = "rope.freq_base_swa" if head.has_window else "rope.freq_base"
    q, k = (head.rope(part.reshape(-1, width), position, base=base) for part in (q, k))
    found = head.attend(
        q, k, v.reshape(n_kv, narrow), 1.0 / np.sqrt(width), sinks=head["attn_sinks"]
    )
    out: Array = head.keys["attention.value_scale"] * (head["attn_output"] @ found.reshape(-1))
    return out


def _chosen(head: Head, x: Array, position: int) -> list[int]:
    """Which of the pairs so far an indexer lets the newest attend to, by their order.

    Whole blocks of pairs with the greatest scores, and the pairs after the last block.
    """
    size, width = head.key("attention.compress_ratios"), head.keys["attention.indexer.key_length"]
    head.index_keys.append((position, head["indexer.k_proj"] @ x))
    n_heads = head.keys["attention.indexer.head_count"]
    q = (head["indexer.q_proj"] @ x).reshape(n_heads, width)
    q = head.rope(head.norm(q, head["indexer.q_norm"]), position)
    scores = []
    for first in _blocks(head, size):
        at = head.index_keys[first][0]
        mean = np.mean([key for _, key in head.index_keys[first : first + size]], axis=0)
        k = head.rope(head.norm(mean, head["indexer.k_norm"])[None], at)[0]
        scores.append(np.maximum(q @ k, 0.0).sum() / np.sqrt(width))
    return _best_blocks(head, scores, size)


def _blocks(head: Head, size: int) -> range:
    """The starts of the whole blocks of the pairs so far."""
    return range(0, len(head.index_keys) - size + 1, size)


def _best_blocks(head: Head, scores: Sequence[float], size: int) -> list[int]:
    """The pairs of the blocks with the greatest scores, and those after the last block."""
    n = len(head.index_keys)
    # Of equal scores, as zeros often are, the first ones.
    best = np.argsort(-np.array(scores), kind="stable")[
        : head.keys["attention.indexer.top_k"] // size
    ]
    blocks = [int(b) * size + i for b in best for i in range(size)]
    return sorted([*blocks, *range(n // size * size, n)])


def _chosen_pools(head: Head, x: Array, position: int) -> list[int]:
    """Chooses as _chosen() does; a block's key is a mean, weighted for each number apart."""
    size, width = head.keys["attention.indexer.kpool"], head.keys["attention.indexer.key_length"]
    key: Array = head["indexer.attn_k"] @ x
    bias = head.tensors[f"{head.blk}indexer.k_norm.bias"]
    key = head.layer_norm(key, head["indexer.k_norm"], bias)
    gate = head["indexer_compressor_gate"] @ x
    head.index_keys.append((position, np.concatenate((key, gate))))
    q = head["indexer.attn_q_b"] @ head.norm(head["attn_q_a"] @ x, head["attn_q_a_norm"])
    q = q.reshape(-1, width)
    weights = head["indexer.proj"] @ x / np.sqrt(q.size)
    scores = []
    for first in _blocks(head, size):
        rows = np.stack([key for _, key in head.index_keys[first : first + size]])
        shares = np.exp(rows[:, width:] + head["indexer_compressor_ape"])
        pooled = (shares / shares.sum(axis=0) * rows[:, :width]).sum(axis=0)
        scores.append(np.maximum(q @ pooled, 0.0) @ weights)
    return _best_blocks(head, scores, size)


def _turn_end(head: Head, x: Array, position: int) -> Array:
    """Rotates the last numbers of each head."""
    n_rot = head.keys["rope.dimension_count"]
    turned = head.rope(x[:, -n_rot:], position, interleaved=True)
    return np.concatenate((x[:, :-n_rot], turned), axis=1)


def _grouped_attention(head: Head, x: Array, position: int) -> Array:
    """All heads attend in a window to one row, whose values are its keys.

    The result is rotated back, and leaves by groups of heads.
    """
    n_head, width = head.keys["attention.head_count"], head.keys["attention.key_length"]
    q = head["attn_q_b"] @ head.norm(head["attn_q_a"] @ x, head["attn_q_a_norm"])
    q = _turn_end(head, head.norm(q.reshape(n_head, width)), position)
    row = head.norm(head["attn_kv"] @ x, head["attn_kv_a_norm"])[None]
    row = _turn_end(head, row, position)
    found = head.attend(q, row, row, 1.0 / np.sqrt(width), sinks=head["attn_sinks"])
    groups = _turn_end(head, found, -position).reshape(
        head.keys["attention.output_group_count"], -1
    )
    narrow = head["attn_output_a"].reshape(len(groups), -1, groups.shape[1])
    out: Array = head["attn_output_b"] @ np.einsum("grd,gd->gr", narrow, groups).reshape(-1)
    return out


_ATTENTIONS: dict[str, Callable[[Head, Array, int], Array]] = {
    "qwen35": _gated_attention,
    "qwen35moe": _gated_attention,
    "qwen3next": _gated_attention,
    "deepseek2": _latent_attention,
    "glm4moe": _attention,
    "cohere2moe": partial(_attention, interleaved=True),
    "nemotron_h_moe": partial(_attention, turns=False),
    "deepseek32": _latent_attention,
    "glm-dsa": _latent_attention,
    "bailingmoe3": _latent_attention,
    "glm5-next": _pooled_attention,
    "step35": _step35_attention,
    "mimo2": _mimo2_attention,
    "hy_v3": _attention,
}
# The next step of these reads the row before the last norm.
_HAND_ON_UNNORMED = ("step35", "mimo2")


def _block(head: Head, x: Array, position: int) -> Pair:
    """Attention and a feed-forward block, one after the other; Cohere's are side by side."""
    normed = head.norm(x, head["attn_norm"])
    x = x + _ATTENTIONS[head.arch](head, normed, position)
    if head.arch == "cohere2moe":
        x = x + feed_forward(head, normed) / 2.0
    else:
        name = "ffn_norm" if head.has("ffn_norm") else "post_attention_norm"
        x = x + feed_forward(head, head.norm(x, head[name]))
    row = head.last_norm(x)
    return head.logits(row), x if head.arch in _HAND_ON_UNNORMED else row


def _qwen4exp(head: Head, x: Array, position: int) -> Pair:
    eps = head.keys["attention.layer_norm_rms_epsilon"]
    row, inject = mix(head.tensors, f"{head.blk}hc_attn_", x, eps)
    assert inject is not None
    x = x + inject[:, None] * _gated_attention(head, row, position, _chosen(head, row, position))
    row, inject = mix(head.tensors, f"{head.blk}hc_ffn_", x, eps)
    assert inject is not None
    x = x + inject[:, None] * feed_forward(head, row)
    return head.logits(mix(head.tensors, f"{head.blk}nextn.hc_head_", x, eps)[0]), x.reshape(-1)


def _deepseek4(head: Head, x: Array, position: int) -> Pair:
    row, of_output, shares = doubly_mix(head, "attn", x)
    out = _grouped_attention(head, head.norm(row, head["attn_norm"]), position)
    x = shares.T @ x + np.outer(of_output, out)
    row, of_output, shares = doubly_mix(head, "ffn", x)
    out = feed_forward(head, head.norm(row, head["ffn_norm"]))
    x = shares.T @ x + np.outer(of_output, out)
    return head.logits(head.last_norm(last_mix(head, x))), x.reshape(-1)


_STREAM_BLOCKS = {"qwen4exp": _qwen4exp, "deepseek4": _deepseek4}
