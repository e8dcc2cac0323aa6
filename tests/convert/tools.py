"""Helpers for the tests of the converter: one random head, written in every layout."""

from __future__ import annotations

import copy
import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader
from numpy.typing import NDArray

from pyllama_spec.convert import ConversionReport, convert_draft
from tests.models import Eagle3Config, eagle3_tensors
from tests.models.keys import add_keys, writing
from tests.models.vocab import write_tokenizer

Array = NDArray[Any]
Tensors = dict[str, Array]
Json = dict[str, Any]

# Of the target: far enough apart that inputs 2, 4, 5 are the default and outputs 1, 3, 4 as well.
N_LAYER, N_EMBD, N_VOCAB, N_DRAFT = 8, 64, 320, 96
INPUTS = (2, 4, 5)
LAYOUTS = ("safeailab", "specforge", "speculators", "redhat", "nvidia", "flat")

PARTS = {
    "attn_norm": "input_layernorm",
    "attn_norm_2": "hidden_norm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTER = {
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "output": "lm_head",
    "enc.output_norm": "input_norm",
    **{f"enc.output_norm.{i}": f"fc_norm.{i}" for i in range(9)},
}


@dataclass
class Head:
    """A head before it is written: tests change its parts."""

    cfg: Eagle3Config
    # By names as in speculators, `layers.0.` and no "model.", BF16 numbers as float32.
    tensors: Tensors
    config: Json
    gguf: Tensors


def make_head(**options: Any) -> Head:
    """A head of a reduced vocabulary for a target of 8 layers; options of Eagle3Config."""
    values: dict[str, Any] = {
        "n_vocab": N_VOCAB, "n_draft_vocab": N_DRAFT, "target_n_embd": N_EMBD, "n_embd": 64,
        "target_layers": INPUTS, "sorted_d2t": True,
    }  # fmt: skip
    cfg = Eagle3Config(**{**values, **options})
    tensors = {
        name: array if name == "d2t" else as_bf16(array)
        for name, array in eagle3_tensors(cfg).items()
    }
    return Head(cfg, to_checkpoint(cfg, tensors), flat_config(cfg), tensors)


def as_bf16(array: Array) -> Array:
    """Float32 numbers that BF16 can hold: the lower half is cut off."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
    out: Array = bits.view(np.float32)
    return out


def to_checkpoint(cfg: Eagle3Config, tensors: Tensors) -> Tensors:
    """The names, row order and offsets of checkpoints: docs/eagle3.md the other way round."""
    out: Tensors = {}
    for name, array in tensors.items():
        if name == "d2t":
            out["d2t"] = array - np.arange(len(array))
            out["t2d"] = np.isin(np.arange(cfg.n_vocab), array)
            continue
        stem, _, end = name.rpartition(".")
        if not stem.startswith("blk."):
            out[f"{_OUTER.get(stem, stem)}.{end}"] = array
            continue
        _, layer, part = stem.split(".")
        if part in ("attn_q", "attn_k", "attn_q_norm", "attn_k_norm"):
            array = _apart(array, cfg.head_size, part == "attn_q" and cfg.output_gate)
        out[f"layers.{layer}.{PARTS[part]}.{end}"] = array
    return out


def _apart(array: Array, head_size: int, has_gates: bool) -> Array:
    """Rows of GGUF's neighbouring pairs (2i, 2i + 1) moved to (i, i + head_size / 2)."""
    out: Array = array.copy()
    block = 2 * head_size if has_gates else head_size
    for start in range(0, len(array), block):
        for i in range(head_size // 2):
            out[start + i] = array[start + 2 * i]
            out[start + i + head_size // 2] = array[start + 2 * i + 1]
    return out


def flat_config(cfg: Eagle3Config) -> Json:
    """The keys of SafeAILab's config.json for such a head."""
    config: Json = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": cfg.n_embd,
        "intermediate_size": cfg.n_ff,
        "max_position_embeddings": 2048,
        "num_attention_heads": cfg.n_head,
        "num_key_value_heads": cfg.n_head_kv,
        "num_hidden_layers": cfg.n_layer,
        "rms_norm_eps": cfg.norm_eps,
        "rope_theta": cfg.rope_freq_base,
        "rope_scaling": None,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vocab_size": cfg.n_vocab,
        "draft_vocab_size": cfg.n_draft_vocab or cfg.n_vocab,
    }
    if cfg.head_dim is not None:
        config["head_dim"] = cfg.head_dim
    if cfg.attn_bias:
        config["attention_bias"] = True
    if cfg.output_gate:
        config["attn_output_gate"] = True
    if cfg.target_n_embd != cfg.n_embd:
        config["target_hidden_size"] = cfg.target_n_embd
    for name in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"):
        if getattr(cfg, name):
            config[name] = True
    return config


def write_head(folder: Path, layout: str, head: Head, floats: str = "BF16") -> Path:
    """Writes the head as one of LAYOUTS does; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    config, tensors = copy.deepcopy(head.config), dict(head.tensors)
    layers = config.pop("eagle_aux_hidden_state_layer_ids", None)
    inputs = list(head.cfg.target_layers) if layers is None else layers
    outputs = [k - 1 for k in head.cfg.target_layers] if layers is None else layers
    if layout.startswith("safeailab"):
        tensors = _as_midlayer(tensors)
    elif layout == "specforge":
        tensors = _as_midlayer(tensors)
        config["architectures"] = ["LlamaForCausalLMEagle3"]
        config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": outputs}
    elif layout == "nvidia":
        tensors = {f"model.{name}": array for name, array in tensors.items()}
        tensors.pop("model.t2d", None)
        config["architectures"] = ["LlamaForCausalLMEagle3"]
        config["eagle_config"] = {
            "eagle_aux_hidden_state_layer_ids": outputs,
            "use_aux_hidden_state": True,
            "use_input_layernorm_in_first_layer": True,
            "use_last_layernorm": True,
            "use_mtp_layernorm": False,
            "next_layer_regular": True,
            "parallel_draft_step": 1,
        }
        for key in ("norm_before_fc", "fc_norm", "norm_before_residual"):
            if key in config:
                config["eagle_config"][key] = config.pop(key)
    elif layout == "flat":
        config["architectures"] = ["Eagle3LlamaForCausalLM"]
        config["eagle_aux_hidden_state_layer_ids"] = inputs
    else:
        config = _speculators(config, inputs, "qwen3" if head.cfg.qk_norm else "llama")
        if layout == "redhat":
            width = head.tensors["norm.weight"].shape
            tensors["verifier_norm.weight"] = np.ones(width, np.float32)
            tensors["verifier_lm_head.weight"] = np.full((N_DRAFT, *width), np.nan, np.float32)
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", tensors, floats)
    return folder


def _as_midlayer(tensors: Tensors) -> Tensors:
    return {name.replace("layers.0.", "midlayer."): array for name, array in tensors.items()}


def _speculators(config: Json, inputs: list[int], model_type: str) -> Json:
    top = {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_config": {"algorithm": "eagle3"},
        "draft_vocab_size": config.pop("draft_vocab_size"),
        "eagle_aux_hidden_state_layer_ids": inputs,
        "norm_before_residual": False,
        "target_hidden_size": config.pop("target_hidden_size", None),
    }
    for key in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"):
        if key in config:
            top[key] = config.pop(key)
    theta = config.pop("rope_theta")
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": theta}
    return {**top, "transformer_layer_config": {**config, "model_type": model_type}}


_CODES = {"f4": "F32", "f8": "F64", "f2": "F16", "i8": "I64", "i4": "I32", "b1": "BOOL"}


def stored(array: Array, floats: str = "BF16") -> tuple[str, bytes]:
    """Type and bytes of an array as a file holds it; float32 as `floats`."""
    kind = _CODES[array.dtype.str[1:]]
    if kind != "F32" or floats == "F32":
        return kind, array.tobytes()
    if floats == "F16":
        return "F16", array.astype(np.float16).tobytes()
    return "BF16", (array.view(np.uint32) >> 16).astype(np.uint16).tobytes()


def write_safetensors(path: Path, tensors: Tensors, floats: str = "BF16") -> None:
    """A .safetensors file: length, JSON header, bytes."""
    header: Json = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, array in tensors.items():
        kind, raw = stored(np.array(array, order="C"), floats)
        span = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": span}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_target(path: Path, arch: str = "llama", **keys: Any) -> Path:
    """The GGUF of a target without its weights: a converter reads keys alone."""
    sizes = {"block_count": N_LAYER, "embedding_length": N_EMBD, "n_vocab": N_VOCAB, **keys}
    n_vocab = sizes.pop("n_vocab")
    with writing(path, arch) as writer:
        add_keys(writer, {f"{arch}.{name}": value for name, value in sizes.items()})
        if n_vocab:
            write_tokenizer(writer, n_vocab, None)
    return path


def convert(folder: Path, out: Path | None = None, **options: Any) -> ConversionReport:
    """Converts for the usual target beside the folder."""
    target = options.pop("target", None) or write_target(folder.parent / "target.gguf")
    return convert_draft(folder, target, out or folder.parent / "out.gguf", **options)


def convert_head(tmp_path: Path, layout: str, head: Head, **options: Any) -> ConversionReport:
    """Writes the head and converts it."""
    return convert(write_head(tmp_path / layout, layout, head), **options)


def gguf_tensors(path: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Type, NumPy shape and bytes of each tensor."""
    return {
        t.name: (t.tensor_type.name, tuple(map(int, t.shape[::-1])), t.data.tobytes())
        for t in GGUFReader(path).tensors
    }


def gguf_keys(path: Path) -> Json:
    """The keys with their values."""
    fields = GGUFReader(path).fields
    return {name: f.contents() for name, f in fields.items() if not name.startswith("GGUF.")}


def check_equal(path: Path, expected: Tensors) -> None:
    """Every tensor of the file is an expected one, bit by bit, and there is no other one."""
    tensors = gguf_tensors(path)
    assert set(tensors) == set(expected)
    for name, array in expected.items():
        kind, raw = stored(array, "BF16" if array.ndim == 2 else "F32")
        assert tensors[name] == (kind, array.shape, raw), name
