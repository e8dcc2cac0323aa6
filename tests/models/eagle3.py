"""EAGLE-3 draft heads of every variant, with random weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType
from gguf.quants import quantize
from numpy.typing import NDArray

from . import parts
from .config import TinyConfig
from .keys import add_keys, writing
from .sketch import Sketch
from .vocab import SPECIAL_IDS, write_tokenizer

Tensors = dict[str, NDArray[Any]]
_FILE_TYPES = {
    "f32": LlamaFileType.ALL_F32,
    "bf16": LlamaFileType.MOSTLY_BF16,
    "f16": LlamaFileType.MOSTLY_F16,
    "q8_0": LlamaFileType.MOSTLY_Q8_0,
}
RopeKind = Literal["none", "linear", "yarn", "llama3", "longrope"]


@dataclass(frozen=True)
class RopeScaling:
    """The RoPE scaling of a head.

    The context length is short, so that with tiny heads every kind changes several frequencies.
    """

    kind: RopeKind = "none"
    factor: float = 8.0
    """The factor of linear, yarn and llama3; longrope's factors are drawn from the seed."""
    original_context: int = 256
    attn_factor: float | None = None
    """Key `rope.scaling.attn_factor`, which belongs to longrope; None leaves it out."""


@dataclass(frozen=True)
class DraftConfig:
    """The settings of a draft of any kind."""

    seed: int = 0
    n_vocab: int = 320
    """The target's vocabulary."""
    n_draft_vocab: int | None = None
    """Size of the reduced vocabulary, which `d2t` maps to the target's; None: no `d2t`."""
    sorted_d2t: bool = True
    target_layers: tuple[int, ...] = (1, 2, 3)
    n_embd: int = 64
    n_layer: int = 1
    n_head: int = 4
    n_head_kv: int = 2
    head_dim: int | None = None
    """None: `n_embd // n_head`."""
    n_ff: int = 96
    own_embedding: bool = True
    own_output: bool = True
    rope: RopeScaling = RopeScaling()
    rope_freq_base: float = 10000.0
    n_ctx_train: int = 65536
    norm_eps: float = 1e-5
    output_scale: float = 8.0
    """Standard deviation of the logits of ordinary tokens."""
    weight_type: Literal["f32", "bf16", "f16", "q8_0"] = "f32"
    """The type of matrices; norms, convolution bases, biases and RoPE factors are F32."""
    control_names: tuple[str, ...] = ()
    """Those of the target's vocabulary."""

    @property
    def head_size(self) -> int:
        return self.n_embd // self.n_head if self.head_dim is None else self.head_dim


@dataclass(frozen=True)
class Eagle3Config(DraftConfig):
    """All settings that determine the bytes of a draft head; docs/eagle3.md explains them."""

    target_n_embd: int = 64
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    output_gate: bool = False
    qk_norm: bool = False
    fc_bias: bool = False
    attn_bias: bool = False
    """Biases on Q, K, V and the attention's output."""


class Draft(Sketch):
    """A draft under construction."""

    draft: Any
    multiple = 1
    """What a matrix's width must be a multiple of to have the configured type."""

    def __init__(self, arch: str, cfg: Any) -> None:
        super().__init__(
            TinyConfig(
                arch, cfg.seed, cfg.n_layer, cfg.n_vocab, cfg.n_ctx_train, n_embd=cfg.n_embd,
                n_head=cfg.n_head, n_head_kv=cfg.n_head_kv, n_ff=cfg.n_ff, norm_eps=cfg.norm_eps,
                rope_freq_base=cfg.rope_freq_base,
            )
        )  # fmt: skip
        self.draft = cfg

    def fill(self) -> None:
        raise NotImplementedError

    def keys(self) -> None:
        raise NotImplementedError

    def sizes(self) -> None:
        cfg = self.draft
        parts.header(self)
        for name in ("attention.key_length", "attention.value_length", "rope.dimension_count"):
            self.key(name, cfg.head_size)
        self.key("target_layers", list(cfg.target_layers))

    def rope_keys(self) -> None:
        """Llama 3 has only a tensor; with longrope's tensors, a factor would be applied as well."""
        rope = self.draft.rope
        if rope.kind in ("linear", "yarn", "longrope"):
            self.key("rope.scaling.type", rope.kind)
            self.key("rope.scaling.original_context_length", rope.original_context)
        if rope.kind in ("linear", "yarn"):
            self.key("rope.scaling.factor", rope.factor)

    def quiet(self, name: str) -> None:
        """Keep control tokens far from the argmax, as in the targets."""
        self.tensors[name][list(SPECIAL_IDS)] *= np.float32(1.0 / 64.0)

    def all_tensors(self) -> Tensors:
        """The tensors, with the output rows that `d2t` names if the vocabulary is reduced."""
        self.fill()
        cfg, tensors = self.draft, dict(self.tensors)
        if cfg.n_draft_vocab is None:
            return tensors
        d2t = self.rng("d2t").permutation(cfg.n_vocab)[: cfg.n_draft_vocab].astype(np.int64)
        d2t = np.sort(d2t) if cfg.sorted_d2t else d2t
        for name in ("output.weight", "markov_w2.weight"):
            if name in tensors:
                tensors[name] = np.ascontiguousarray(tensors[name][d2t])
        return {**tensors, "d2t": d2t}

    def write_with(
        self,
        path: Path,
        tensors: Mapping[str, NDArray[Any]],
        target: Path | None = None,
        keys: Mapping[str, Any] | None = None,
    ) -> Path:
        """Write the file with `tensors` in place of the draft's own, and a target's tokenizer.

        `keys` maps full names of keys to other values; None leaves a key out.
        """
        cfg = self.draft
        with writing(path, self.cfg.arch) as writer:
            writer.add_name("tiny test draft")
            writer.add_file_type(_FILE_TYPES[cfg.weight_type])
            self.keys()
            self.meta.update(keys or {})
            self.meta = {name: value for name, value in self.meta.items() if value is not None}
            add_keys(writer, self.meta)
            if target is None:
                write_tokenizer(writer, cfg.n_vocab, None, cfg.control_names)
            else:
                copy_tokenizer(writer, target)
            mask = getattr(cfg, "mask_token", None)
            if mask is not None:
                writer.add_mask_token_id(mask)
            for name, array in tensors.items():
                is_wide = array.ndim == 2 and array.shape[1] % self.multiple == 0
                if cfg.weight_type != "f32" and is_wide:
                    kind = GGMLQuantizationType[cfg.weight_type.upper()]
                    writer.add_tensor(name, quantize(array, kind), raw_dtype=kind)
                else:
                    writer.add_tensor(name, array)
        return path


class _Head(Draft):
    """A draft head under construction."""

    draft: Eagle3Config

    def _attention(self, blk: str, n_in: int) -> None:
        cfg = self.draft
        n_q, n_kv = cfg.n_head * cfg.head_size, cfg.n_head_kv * cfg.head_size
        n_q_rows = 2 * n_q if cfg.output_gate else n_q
        self.matrix(f"{blk}attn_q.weight", n_q_rows, n_in, gain=1.5)
        self.matrix(f"{blk}attn_k.weight", n_kv, n_in, gain=1.5)
        self.matrix(f"{blk}attn_v.weight", n_kv, n_in)
        self.matrix(f"{blk}attn_output.weight", cfg.n_embd, n_q, gain=1.5)
        if cfg.attn_bias:
            for part, n in (("q", n_q_rows), ("k", n_kv), ("v", n_kv)):
                self.normal(f"{blk}attn_{part}.bias", n, std=0.2)
            self.normal(f"{blk}attn_output.bias", cfg.n_embd, std=0.1)
        if cfg.qk_norm:
            for part in "qk":
                self.normal(f"{blk}attn_{part}_norm.weight", cfg.head_size, mean=1.5, std=0.1)

    def _features(self) -> None:
        cfg = self.draft
        n_features = len(cfg.target_layers) * cfg.target_n_embd
        if cfg.norm_before_fc:
            self.norm("enc.output_norm", n_features)
        if cfg.fc_norm:
            for index in range(len(cfg.target_layers)):
                self.norm(f"enc.output_norm.{index}", cfg.target_n_embd)
        self.matrix("fc.weight", cfg.n_embd, n_features)
        if cfg.fc_bias:
            self.normal("fc.bias", cfg.n_embd, std=0.2)

    def _rope_factors(self) -> None:
        cfg, n_pairs = self.draft, self.draft.head_size // 2
        if cfg.rope.kind == "llama3":
            self.put("rope_freqs.weight", llama3_factors(cfg))
        if cfg.rope.kind == "longrope":
            for part, high in (("short", 1.5), ("long", 16.0)):
                name = f"rope_factors_{part}.weight"
                self.put(name, np.sort(self.rng(name).uniform(1.0, high, n_pairs)))

    def fill(self) -> None:
        cfg = self.draft
        self._features()
        if cfg.own_embedding:
            self.normal("token_embd.weight", cfg.n_vocab, cfg.n_embd)
        for index in range(cfg.n_layer):
            blk = f"blk.{index}."
            names = ("attn_norm", "ffn_norm") if index else ("attn_norm", "attn_norm_2", "ffn_norm")
            parts.norms(self, blk, *names)
            self._attention(blk, cfg.n_embd if index else 2 * cfg.n_embd)
            parts.gated_ffn(self, blk)
        self.norm("output_norm", cfg.n_embd)
        if cfg.own_output:
            self.matrix("output.weight", cfg.n_vocab, cfg.n_embd, gain=cfg.output_scale)
            self.quiet("output.weight")
        self._rope_factors()

    def keys(self) -> None:
        """Add the architecture's keys; options that are off are left to their defaults."""
        cfg = self.draft
        self.sizes()
        self.key("target_hidden_size", cfg.target_n_embd)
        flags = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
        self.add_keys({name: True for name in flags if getattr(cfg, name)})
        if cfg.output_gate:
            self.key("attention.output_gate", True)
        self.rope_keys()
        if cfg.rope.attn_factor is not None:
            self.key("rope.scaling.attn_factor", cfg.rope.attn_factor)


def llama3_factors(cfg: DraftConfig) -> NDArray[np.float64]:
    """Llama 3.1's divisors of the RoPE frequencies, float64 `[head size / 2]`."""
    low, high = 1.0, 4.0
    n_pairs = cfg.head_size // 2
    wavelengths = 2 * np.pi * cfg.rope_freq_base ** (np.arange(n_pairs) / n_pairs)
    # 0: fully stretched, 1: left alone
    smooth = np.clip((cfg.rope.original_context / wavelengths - low) / (high - low), 0.0, 1.0)
    result: NDArray[np.float64] = 1.0 / ((1.0 - smooth) / cfg.rope.factor + smooth)
    return result


def eagle3_tensors(cfg: Eagle3Config) -> Tensors:
    """The head's tensors by their GGUF names: float32 `[out, in]` or `[size]`, `d2t` int64.

    A tensor's values depend on seed, name and shape alone. The output rows of a reduced
    vocabulary are those rows of the full one that `d2t` names, so that reducing a vocabulary
    keeps the logits that remain.
    """
    return _Head("eagle3", cfg).all_tensors()


def write_eagle3(path: Path, cfg: Eagle3Config, tensors: Mapping[str, NDArray[Any]]) -> Path:
    """Write a head of `cfg`'s keys with `tensors` (as from `eagle3_tensors`); returns `path`.

    Readers never see a half-written file under `path`.
    """
    return _Head("eagle3", cfg).write_with(path, tensors)


def build_eagle3(path: Path, **options: Any) -> Path:
    """Write a random head; `options` are the fields of `Eagle3Config`. Returns `path`."""
    cfg = Eagle3Config(**options)
    return _Head("eagle3", cfg).write_with(path, eagle3_tensors(cfg))


def copy_tokenizer(writer: GGUFWriter, source: Path) -> None:
    """Give `writer` the tokenizer of the GGUF `source`, without its chat template."""
    for field in GGUFReader(source).fields.values():
        if not field.name.startswith("tokenizer.") or field.name == "tokenizer.chat_template":
            continue
        value = field.contents()
        if field.types[0] == GGUFValueType.ARRAY:
            writer.add_array(field.name, value)
        else:
            writer.add_key_value(field.name, value, field.types[0])
