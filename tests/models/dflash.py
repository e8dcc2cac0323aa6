"""DFlash, DFlash2 and DSpark drafts of every variant, with random weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from gguf import GGUFReader
from numpy.typing import NDArray

from . import parts
from .eagle3 import Draft, DraftConfig, Tensors, llama3_factors

Variant = Literal["dflash", "dflash2", "dspark"]


@dataclass(frozen=True)
class DFlashConfig(DraftConfig):
    """All settings that determine the bytes of a draft, which has the target's width.

    None leaves a key out, unless stated.
    """

    variant: Variant = "dflash"
    n_layer: int = 2
    norm_eps: float = 1e-6
    block_size: int | None = 6
    mask_token: int | None = 300
    """An ordinary padding word by default: no text encodes to it."""
    causal: bool | None = None
    causal_pattern: tuple[bool, ...] | None = None
    """Per layer, if the layers differ."""
    attention_bias: bool = False
    sliding_window: int | None = None
    window_pattern: tuple[bool, ...] | None = None
    """Which layers slide; None: all, if there is a window."""
    sample_from_anchor: bool | None = None
    """Without the key, the anchor's slot drafts too in DSpark, and not in other variants."""
    markov_rank: int = 12
    confidence: bool = True
    """DSpark's confidence head."""
    selector_rank: int = 8
    selector_top_k: int = 4
    conv_kernel_size: int = 2
    conv_group_size: int = 8
    embedding_scale: float | None = None
    logit_scale: float | None = None
    softcap: float | None = None
    attention_scale: float | None = None
    value_scale: float | None = None
    hidden_activation: str | None = None
    mrope: bool = False
    """Sections as for an M-RoPE target: all pairs temporal."""
    post_norms: bool = False
    output_scales: bool = False
    """A factor on the output of each layer."""
    sinks: bool = False
    shared_kv: bool = False
    """Keys serve as values."""

    @property
    def slides(self) -> tuple[bool, ...]:
        """Per layer, whether it has a window."""
        if self.sliding_window is None:
            return (False,) * self.n_layer
        return self.window_pattern or (True,) * self.n_layer


class _Block(Draft):
    """A draft under construction."""

    draft: DFlashConfig
    multiple = 32

    def _attention(self, blk: str) -> None:
        cfg = self.draft
        n_q, n_kv = cfg.n_head * cfg.head_size, cfg.n_head_kv * cfg.head_size
        self.matrix(f"{blk}attn_q.weight", n_q, cfg.n_embd)
        self.matrix(f"{blk}attn_k.weight", n_kv, cfg.n_embd)
        if not cfg.shared_kv:
            self.matrix(f"{blk}attn_v.weight", n_kv, cfg.n_embd)
        self.matrix(f"{blk}attn_output.weight", cfg.n_embd, n_q, gain=1.5)
        # sharper attention would expose the engine's rounding of angles at positions of hundreds
        for part in "qk":
            self.normal(f"{blk}attn_{part}_norm.weight", cfg.head_size, mean=1.25, std=0.1)
        for part, n in (("q", n_q), ("k", n_kv), ("v", n_kv), ("output", cfg.n_embd)):
            if cfg.attention_bias:
                self.normal(f"{blk}attn_{part}.bias", n, std=0.3)
        if cfg.sinks:
            self.normal(f"{blk}attn_sinks.weight", cfg.n_head, mean=1.0)

    def _layer(self, blk: str) -> None:
        cfg = self.draft
        names = ["attn_norm", "ffn_norm"]
        if cfg.post_norms:
            names += ["post_attention_norm", "post_ffw_norm"]
        parts.norms(self, blk, *names)
        self._attention(blk)
        parts.gated_ffn(self, blk)
        if cfg.output_scales:
            self.uniform(f"{blk}layer_output_scale.weight", 1, low=0.5, high=0.9)
        if cfg.variant == "dflash2":
            for part in ("attn", "ffn"):
                self._convolution(f"{blk}{part}_conv")

    def _convolution(self, name: str) -> None:
        """Add taps that mostly keep a row, but mix in enough of earlier rows to show."""
        cfg = self.draft
        taps, groups = cfg.conv_kernel_size, cfg.n_embd // cfg.conv_group_size
        base = self.rng(f"{name}_base").normal(0.0, 0.3, (2, taps, cfg.n_embd))
        base[:, 0] += 1.0
        self.put(f"{name}_base", base)
        self.matrix(f"{name}_proj.weight", 2 * taps * groups, cfg.n_embd, gain=0.2)

    def _heads(self) -> None:
        cfg = self.draft
        if cfg.variant == "dflash2":
            for table in ("predecessor", "successor"):
                self.normal(f"selector_{table}.weight", cfg.n_vocab, cfg.selector_rank)
            self.matrix("selector_hidden.weight", cfg.selector_rank, cfg.n_embd)
        if cfg.variant == "dspark":
            self.normal("markov_w1.weight", cfg.n_vocab, cfg.markov_rank)
            # half the logits' spread: the previous token often decides, the row mostly
            self.matrix("markov_w2.weight", cfg.n_vocab, cfg.markov_rank, gain=cfg.output_scale / 2)
            self.quiet("markov_w2.weight")
            if cfg.confidence:
                self.matrix("conf_proj.weight", 1, cfg.n_embd + cfg.markov_rank, gain=1.5)
                self.normal("conf_proj.bias", 1, std=0.2)

    def fill(self) -> None:
        cfg = self.draft
        self.matrix("fc.weight", cfg.n_embd, len(cfg.target_layers) * cfg.n_embd)
        self.norm("enc.output_norm", cfg.n_embd)
        if cfg.own_embedding:
            std = 1.0 / (cfg.embedding_scale or 1.0)
            self.normal("token_embd.weight", cfg.n_vocab, cfg.n_embd, std=std)
        for _, blk in parts.layers(self):
            self._layer(blk)
        self.norm("output_norm", cfg.n_embd)
        if cfg.own_output:
            self.matrix("output.weight", cfg.n_vocab, cfg.n_embd, gain=cfg.output_scale)
            self.quiet("output.weight")
        if cfg.rope.kind == "llama3":
            self.put("rope_freqs.weight", llama3_factors(cfg))
        self._heads()

    def keys(self) -> None:
        """Add the architecture's keys; options that are None are left out."""
        cfg = self.draft
        self.sizes()
        self.rope_keys()
        slides = list(cfg.slides)
        values: dict[str, Any] = {
            "block_size": cfg.block_size,
            "attention.causal": cfg.causal,
            "attention.causal_pattern": cfg.causal_pattern and list(cfg.causal_pattern),
            "attention.sliding_window": cfg.sliding_window,
            "attention.sliding_window_pattern": None if cfg.sliding_window is None else slides,
            "embedding_scale": cfg.embedding_scale,
            "logit_scale": cfg.logit_scale,
            "final_logit_softcapping": cfg.softcap,
            "attention.scale": cfg.attention_scale,
            "attention.value_scale": cfg.value_scale,
            "hidden_activation": cfg.hidden_activation,
            "rope.dimension_sections": [cfg.head_size // 2, 0, 0, 0] if cfg.mrope else None,
            "sample_from_anchor": cfg.sample_from_anchor,
            "has_confidence_head": cfg.confidence if cfg.variant == "dspark" else None,
        }
        if cfg.variant == "dflash2":
            for name in ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"):
                values[name] = getattr(cfg, name)
        self.add_keys({name: value for name, value in values.items() if value is not None})


def dflash_tensors(cfg: DFlashConfig) -> Tensors:
    """As `eagle3_tensors`; a convolution's base is `[2, taps, n_embd]`: before, after."""
    return _Block("dflash", cfg).all_tensors()


def write_dflash(
    path: Path,
    cfg: DFlashConfig,
    tensors: Mapping[str, NDArray[Any]],
    keys: Mapping[str, Any] | None = None,
) -> Path:
    """Write a draft of `cfg`'s keys with `tensors` (as from `dflash_tensors`); returns `path`.

    `keys` replace those of `cfg`, by their full names; None leaves a key out. Readers never see a
    half-written file under `path`.
    """
    return _Block("dflash", cfg).write_with(path, tensors, keys=keys)


def build_dflash(path: Path, *, target: Path | None = None, **options: Any) -> Path:
    """Write a random draft; `options` are the fields of `DFlashConfig`. Returns `path`.

    With a GGUF as `target` the draft has its tokenizer, and by default its width, vocabulary,
    embedding scale and M-RoPE.
    """
    known = {} if target is None else target_options(target)
    cfg = DFlashConfig(**{**known, **options})
    return _Block("dflash", cfg).write_with(path, dflash_tensors(cfg), target)


def target_options(target: Path) -> dict[str, Any]:
    """The fields of `DFlashConfig` that a draft must share with the model in `target`."""
    reader = GGUFReader(target)

    def key(name: str) -> Any:
        field = reader.get_field(name)
        return None if field is None else field.contents()

    arch = str(key("general.architecture"))
    n_embd = int(key(f"{arch}.embedding_length"))
    options: dict[str, Any] = {"n_embd": n_embd, "n_vocab": len(key("tokenizer.ggml.tokens"))}
    if arch.startswith("gemma"):
        # gemma has no key for it: the engine's graph multiplies by it
        options["embedding_scale"] = float(np.sqrt(n_embd))
    if key(f"{arch}.rope.dimension_sections") is not None:
        options["mrope"] = True
    return options
