"""Helpers for the tests of DFlash's conversion: one random draft, written in every layout."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pyllama_spec.convert import ConversionReport, convert_draft
from tests.convert.tools import (
    PARTS,
    Array,
    Json,
    Tensors,
    as_bf16,
    gguf_tensors,
    write_safetensors,
    write_target,
)

N_LAYER, N_EMBD, N_VOCAB, N_DRAFT = 8, 32, 320, 96
N_HEAD, N_HEAD_KV, HEAD, N_FF = 4, 2, 16, 48
BLOCK, MASK, RANK = 7, 300, 6
INPUTS = (2, 5, 7)
SELECTOR = {
    "conv_kernel_size": 2, "conv_group_size": 8, "selector_rank": 6, "selector_top_k": 4,
}  # fmt: skip
# Those of a plain draft, and those that a draft of a kind is published in.
LAYOUTS = ("zlab", "zlab_newer", "prefixed", "muse", "flat", "speculators", "redhat")
DSPARK_LAYOUTS = ("specforge", "deepspec", "radixark", "speculators", "redhat")
_LAYER = {
    **{f"{part}.weight": f"{name}.weight" for part, name in PARTS.items()},
    "attn_sinks.weight": "self_attn.attention_sink_bias",
    "attn_conv_base": "attention_conv.base_kernel",
    "attn_conv_proj.weight": "attention_conv.kernel_projection.weight",
    "ffn_conv_base": "mlp_conv.base_kernel",
    "ffn_conv_proj.weight": "mlp_conv.kernel_projection.weight",
}
_OUTER = {
    "fc.weight": "fc.weight",
    "enc.output_norm.weight": "hidden_norm.weight",
    "output_norm.weight": "norm.weight",
    "token_embd.weight": "embed_tokens.weight",
    "output.weight": "lm_head.weight",
    "markov_w1.weight": "markov_head.markov_w1.weight",
    "markov_w2.weight": "markov_head.markov_w2.weight",
    "conf_proj.weight": "confidence_head.proj.weight",
    "conf_proj.bias": "confidence_head.proj.bias",
    "selector_hidden.weight": "candidate_selector.hidden_projection.weight",
    "selector_predecessor.weight": "candidate_selector.predecessor_codebook",
    "selector_successor.weight": "candidate_selector.successor_codebook",
}


@dataclass
class DflashDraft:
    """A draft before it is written: tests change its parts."""

    # By names as in z-lab's files, BF16 numbers as float32.
    tensors: Tensors
    # As z-lab writes it, with all options of the draft in dflash_config.
    config: Json
    gguf: Tensors
    inputs: tuple[int, ...] = INPUTS
    reduced: bool = False
    # Keys that a layout would write itself.
    more: Json = field(default_factory=dict)


def make_draft(
    kind: str = "dflash",
    *,
    n_layer: int = 2,
    n_embd: int = N_EMBD,
    inputs: tuple[int, ...] = INPUTS,
    own: tuple[str, ...] = (),
    reduced: bool = False,
    sinks: bool = False,
) -> DflashDraft:
    """A draft for a target of 8 layers: dflash, dflash2 or dspark.

    `own` contains token_embd and output if the draft brings them; a reduced draft brings both, and
    its output has 96 tokens. With sinks each head has an attention sink.
    """
    shapes = _shapes(kind, n_embd, len(inputs), N_DRAFT if reduced else N_VOCAB)
    if not reduced:
        shapes = {
            n: s
            for n, s in shapes.items()
            if n not in {"token_embd.weight", "output.weight"} - {f"{o}.weight" for o in own}
        }
    for index in range(n_layer):
        shapes |= {f"blk.{index}.{n}": s for n, s in _layer_shapes(kind, n_embd, sinks).items()}
    rng = np.random.default_rng(7)
    gguf = {name: as_bf16(rng.standard_normal(shape)) for name, shape in shapes.items()}
    tensors = {to_zlab(name): array for name, array in gguf.items()}
    if reduced:
        ids = np.sort(rng.permutation(N_VOCAB)[:N_DRAFT]).astype(np.int64)
        gguf["d2t"] = ids
        tensors["d2t"] = ids - np.arange(N_DRAFT)
        tensors["t2d"] = np.isin(np.arange(N_VOCAB), ids)
    return DflashDraft(
        tensors, _config(kind, n_layer, n_embd, inputs, sinks), gguf, inputs, reduced
    )


def to_zlab(name: str) -> str:
    """A GGUF's name as z-lab writes it."""
    if not name.startswith("blk."):
        return _OUTER[name]
    _, index, part = name.split(".", 2)
    return f"layers.{index}.{_LAYER[part]}"


def _shapes(kind: str, n_embd: int, n_taps: int, n_draft: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (N_VOCAB, n_embd), "output.weight": (n_draft, n_embd),
        "fc.weight": (n_embd, n_taps * n_embd), "enc.output_norm.weight": (n_embd,),
        "output_norm.weight": (n_embd,),
    }  # fmt: skip
    if kind == "dspark":
        shapes |= {
            "markov_w1.weight": (N_VOCAB, RANK), "markov_w2.weight": (n_draft, RANK),
            "conf_proj.weight": (1, n_embd + RANK), "conf_proj.bias": (1,),
        }  # fmt: skip
    if kind == "dflash2":
        rank = SELECTOR["selector_rank"]
        shapes |= {
            "selector_hidden.weight": (rank, n_embd),
            "selector_predecessor.weight": (N_VOCAB, rank),
            "selector_successor.weight": (N_VOCAB, rank),
        }
    return shapes


def _layer_shapes(kind: str, n_embd: int, sinks: bool) -> dict[str, tuple[int, ...]]:
    n_q, n_kv = N_HEAD * HEAD, N_HEAD_KV * HEAD
    shapes: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (n_embd,), "ffn_norm.weight": (n_embd,),
        "attn_q.weight": (n_q, n_embd), "attn_k.weight": (n_kv, n_embd),
        "attn_v.weight": (n_kv, n_embd), "attn_output.weight": (n_embd, n_q),
        "attn_q_norm.weight": (HEAD,), "attn_k_norm.weight": (HEAD,),
        "ffn_gate.weight": (N_FF, n_embd), "ffn_up.weight": (N_FF, n_embd),
        "ffn_down.weight": (n_embd, N_FF),
    }  # fmt: skip
    if sinks:
        shapes["attn_sinks.weight"] = (N_HEAD,)
    if kind == "dflash2":
        kernel, n_groups = SELECTOR["conv_kernel_size"], n_embd // SELECTOR["conv_group_size"]
        for part in ("attn", "ffn"):
            shapes[f"{part}_conv_base"] = (2, kernel, n_embd)
            shapes[f"{part}_conv_proj.weight"] = (2 * kernel * n_groups, n_embd)
    return shapes


def _config(kind: str, n_layer: int, n_embd: int, inputs: tuple[int, ...], sinks: bool) -> Json:
    options: Json = {"mask_token_id": MASK, "target_layer_ids": [k - 1 for k in inputs]}
    if kind == "dspark":
        options |= {
            "markov_rank": RANK, "markov_head_type": "vanilla", "enable_confidence_head": True,
            "confidence_head_with_markov": True,
        }  # fmt: skip
    if kind == "dflash2":
        options |= SELECTOR
    if sinks:
        options["attention_sink_bias"] = True
    return {
        "architectures": ["DFlash2DraftModel" if kind == "dflash2" else "DFlashDraftModel"],
        "attention_bias": False, "attention_dropout": 0.0,
        "auto_map": {"AutoModel": "dflash.DFlashDraftModel"}, "block_size": BLOCK,
        "dflash_config": options, "dtype": "bfloat16", "head_dim": HEAD, "hidden_act": "silu",
        "hidden_size": n_embd, "initializer_range": 0.02, "intermediate_size": N_FF,
        "layer_types": ["full_attention"] * n_layer, "max_position_embeddings": 4096,
        "max_window_layers": n_layer, "model_type": "qwen3", "num_attention_heads": N_HEAD,
        "num_hidden_layers": n_layer, "num_key_value_heads": N_HEAD_KV,
        "num_target_layers": N_LAYER, "rms_norm_eps": 1e-6, "rope_scaling": None,
        "rope_theta": 1000000, "sliding_window": None, "tie_word_embeddings": False,
        "use_cache": True, "use_sliding_window": False, "vocab_size": N_VOCAB,
    }  # fmt: skip


def write_draft(folder: Path, layout: str, draft: DflashDraft) -> Path:
    """Writes the draft as a layout does; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    config, tensors = copy.deepcopy(draft.config), dict(draft.tensors)
    if layout in ("speculators", "redhat"):
        config = _speculators(config, list(draft.inputs), draft.reduced)
        if layout == "redhat":
            tensors["verifier_norm.weight"] = np.ones(N_EMBD, np.float32)
            tensors["verifier_lm_head.weight"] = np.full((N_VOCAB, N_EMBD), np.nan, np.float32)
    elif layout == "prefixed":
        tensors = {f"model.{name}": array for name, array in tensors.items()}
    elif layout == "zlab_newer":
        config["dflash_config"]["block_size"] = config.pop("block_size")
        theta = config.pop("rope_theta")
        config["rope_parameters"] = {"rope_theta": theta, "rope_type": "default"}
    elif layout == "specforge":
        config["architectures"] = ["DSparkDraftModel"]
        config["dflash_config"] |= {
            "attention_mode": "gqa", "projector_type": "dspark", "confidence_head_alpha": 1.0,
        }  # fmt: skip
    elif layout in ("deepspec", "flat", "muse", "radixark"):
        options = config.pop("dflash_config")
        config |= options
        config["architectures"] = ["Qwen3DSparkModel"]
        if layout == "deepspec":
            config["num_anchors"] = 512
        elif layout == "radixark":
            config["dspark_config"] = {
                key: options[key] for key in ("mask_token_id", "target_layer_ids", "markov_rank")
            }
        elif layout == "muse":
            config |= {"architectures": ["MuseGlimmerAssistantModel"]}
            config["model_type"] = "muse_glimmer_assistant"
            tensors["encoder.fc.weight"] = tensors.pop("fc.weight")
            tensors["encoder.output_norm_enc.weight"] = tensors.pop("hidden_norm.weight")
    (folder / "config.json").write_text(json.dumps(config | draft.more))
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


def _speculators(config: Json, inputs: list[int], is_reduced: bool) -> Json:
    options = config.pop("dflash_config")
    del options["target_layer_ids"], config["num_target_layers"], config["auto_map"]
    kind = "dspark" if "markov_rank" in options else "dflash"
    theta = config.pop("rope_theta")
    config["rope_parameters"] = {"rope_theta": theta, "rope_type": "default"}
    block = config.pop("block_size", None)
    return {
        "architectures": ["DSparkDraftModel" if kind == "dspark" else "DFlashDraftModel"],
        "speculators_model_type": kind, "speculators_version": "0.5.0",
        "speculators_config": {"algorithm": kind}, "dtype": "bfloat16",
        "aux_hidden_state_layer_ids": inputs, "block_size": block,
        "draft_vocab_size": N_DRAFT if is_reduced else N_VOCAB, "target_hidden_size": None,
        "sample_from_anchor": kind == "dspark", "sliding_window_non_causal": False,
        "has_no_defaults_at_init": False, "transformer_layer_config": config, **options,
    }  # fmt: skip


def convert(folder: Path, **options: Any) -> ConversionReport:
    """Converts for the usual target beside the folder."""
    target = options.pop("target", None)
    if target is None:
        target = write_target(folder.parent / "target.gguf", embedding_length=N_EMBD)
    return convert_draft(folder, target, folder.parent / "out.gguf", **options)


def convert_written(
    tmp_path: Path, layout: str, draft: DflashDraft, **options: Any
) -> ConversionReport:
    """Writes the draft and converts it."""
    return convert(write_draft(tmp_path / layout, layout, draft), **options)


def numbers(path: Path, name: str) -> Array:
    """A tensor of F32, F16 or BF16 as float32."""
    kind, shape, raw = gguf_tensors(path)[name]
    if kind == "BF16":
        bits = np.frombuffer(raw, np.uint16).astype(np.uint32) << 16
        return bits.view(np.float32).reshape(shape)
    dtype = {"F32": np.float32, "F16": np.float16}[kind]
    array: Array = np.frombuffer(raw, dtype).astype(np.float32).reshape(shape)
    assert math.prod(shape) == array.size
    return array
