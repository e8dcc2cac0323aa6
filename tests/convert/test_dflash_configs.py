"""A table of published configurations, converted whole with small random weights.

Options, ids, windows, blocks, RoPE and layer counts are those of the published config.json files as
public repositories quote them (z-lab/dflash, sgl-project/SpecForge, deepseek-ai/DeepSpec, and the
tests of readers); widths, heads and vocabularies are small. Each case names what was not found. The
table leaves out cases that lack more than sizes: Qwen3-Coder-Next and Llama-3.1-8B.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyllama_spec.convert import ConversionReport, convert_draft
from pyllama_spec.errors import ConversionError
from tests.convert.tools import Json, Tensors, as_bf16, gguf_keys, write_safetensors, write_target

N_VOCAB, N_DRAFT, HEAD, N_FF = 320, 96, 16, 48
QWEN, QWEN35, GEMMA = 151936, 248320, 262144
F, S = "full_attention", "sliding_attention"
YARN = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096}
MROPE = {"rope.dimension_sections": [11, 11, 10, 0]}


@dataclass
class Case:
    """One published file, before it is made small."""

    config: Json
    arch: str
    """The target's architecture."""
    n_layer: int
    """The target's number of layers."""
    inputs: tuple[int, ...]
    """Which the GGUF should name."""
    draft: str = "DFlash"
    target: dict[str, Any] = field(default_factory=dict)
    keys: Json = field(default_factory=dict)
    """Further ones that the GGUF should have."""
    own: bool = False
    """Whether it brings token_embd and output."""
    reduced: bool = False


def zlab(n_vocab: int, n_layer: int, n_target: int, ids: list[int], mask: int, **more: Any) -> Json:
    """A flat config.json; `inner` goes into dflash_config."""
    inner = {"mask_token_id": mask, "target_layer_ids": ids, **more.pop("inner", {})}
    return {
        "architectures": ["DFlashDraftModel"], "attention_bias": False, "attention_dropout": 0.0,
        "auto_map": {"AutoModel": "dflash.DFlashDraftModel"}, "block_size": 16, "bos_token_id": 1,
        "dflash_config": inner, "dtype": "bfloat16", "eos_token_id": 2, "head_dim": 128,
        "hidden_act": "silu", "initializer_range": 0.02, "layer_types": [F] * n_layer,
        "max_position_embeddings": 262144, "max_window_layers": n_layer, "model_type": "qwen3",
        "num_attention_heads": 32, "num_hidden_layers": n_layer, "num_key_value_heads": 8,
        "num_target_layers": n_target, "rms_norm_eps": 1e-6, "rope_scaling": None,
        "rope_theta": 10000000, "sliding_window": None, "tie_word_embeddings": False,
        "use_cache": True, "use_sliding_window": False, "vocab_size": n_vocab, **more,
    }  # fmt: skip


def windows(n: int, window: int, last: str = F) -> Json:
    """All layers but the last one slide."""
    return {
        "layer_types": [S] * (n - 1) + [last], "sliding_window": window, "use_sliding_window": True,
    }  # fmt: skip


def deepspec(mask: int = 151669, **more: Any) -> Json:
    """The keys that DeepSpec's build_draft_config keeps of Qwen3's, and those it adds."""
    flat = zlab(QWEN, 5, 36, [], mask, rope_theta=None, block_size=7)
    del flat["dflash_config"], flat["auto_map"]
    return flat | {
        "architectures": ["Qwen3DSparkModel"], "mask_token_id": mask, "num_anchors": 512,
        "target_layer_ids": [1, 9, 17, 25, 33], "enable_confidence_head": True,
        "confidence_head_with_markov": True, "markov_rank": 256, "markov_head_type": "vanilla",
        "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"}, **more,
    }  # fmt: skip


def speculators(kind: str, n_vocab: int, ids: list[int], mask: int, **more: Any) -> Json:
    """A nested config.json; `body` goes into transformer_layer_config."""
    flat = zlab(n_vocab, 5, 0, [], mask)
    body = {
        key: flat[key] for key in (
            "attention_bias", "head_dim", "hidden_act", "max_position_embeddings", "model_type",
            "num_attention_heads", "num_hidden_layers", "num_key_value_heads", "rms_norm_eps",
            "vocab_size", "layer_types",
        )
    }  # fmt: skip
    body["rope_parameters"] = {"rope_theta": 1000000, "rope_type": "default"}
    return {
        "architectures": ["DFlashDraftModel"], "aux_hidden_state_layer_ids": ids, "block_size": 8,
        "draft_vocab_size": 32000, "dtype": "bfloat16", "has_no_defaults_at_init": False,
        "mask_token_id": mask, "speculators_model_type": kind, "speculators_version": "0.5.0",
        "speculators_config": {"algorithm": kind, "proposal_methods": []},
        "target_hidden_size": None, "tie_word_embeddings": False, "transformers_version": "4.57.6",
        "transformer_layer_config": body | more.pop("body", {}), **more,
    }  # fmt: skip


DSPARK_OPTIONS = {
    "attention_mode": "gqa", "confidence_head_alpha": 1.0, "confidence_head_with_markov": True,
    "enable_confidence_head": True, "markov_head_type": "vanilla", "markov_rank": 256,
    "projector_type": "dspark",
}  # fmt: skip
DFLASH2 = {"conv_group_size": 16, "conv_kernel_size": 2, "selector_rank": 256, "selector_top_k": 16}
OF_36 = (2, 10, 18, 26, 34)
TAPS_OF_QWEN35 = [1, 5, 9, 13, 17, 21, 25, 29]
MIXED = {"attention.causal": False, "attention.causal_pattern": [True] * 4 + [False]}
CASES = {
    "z-lab/Qwen3-4B-DFlash-b16": Case(
        zlab(QWEN, 5, 36, [1, 9, 17, 25, 33], 151669, rope_theta=1000000), "qwen3", 36, OF_36,
        keys={"block_size": 16, "rope.freq_base": 1e6, "attention.causal": False},
    ),
    "z-lab/Qwen3.5-4B-DFlash": Case(
        zlab(QWEN35, 6, 32, TAPS_OF_QWEN35, 248077, block_size=None, tie_word_embeddings=True,
             bos_token_id=None, rope_theta=None, transformers_version="5.7.0",
             rope_parameters={"rope_theta": 10000000, "rope_type": "default"},
             inner={"block_size": 16}, **windows(6, 4096)),
        "qwen35", 32, (2, 6, 10, 14, 18, 22, 26, 30), target=MROPE,
        keys={"attention.sliding_window": 4096, "rope.dimension_sections": [8, 0, 0, 0],
              "attention.sliding_window_pattern": [True] * 5 + [False]},
    ),
    "z-lab/Qwen3.5-27B-DFlash": Case(
        zlab(QWEN35, 5, 64, [1, 16, 31, 46, 61], 248070, rope_theta=5000000,
             num_target_layers=None, layer_types=None, sliding_window=None),
        "qwen35", 64, (2, 17, 32, 47, 62), target=MROPE, keys={"rope.freq_base": 5e6},
    ),
    "z-lab/Qwen3.5-35B-A3B-DFlash": Case(
        zlab(QWEN35, 8, 40, [1, 10, 19, 28, 37], 248070, num_key_value_heads=4), "qwen35moe", 40,
        (2, 11, 20, 29, 38), target=MROPE,
    ),
    "z-lab/Qwen3.6-27B-DFlash": Case(
        zlab(QWEN35, 5, 64, [1, 16, 31, 46, 61], 248070, bos_token_id=None, **windows(5, 2048)),
        "qwen35", 64, (2, 17, 32, 47, 62), target=MROPE,
        keys={"attention.sliding_window": 2048} | MIXED,
    ),
    "z-lab/gemma-4-31B-it-DFlash": Case(
        zlab(GEMMA, 5, 60, [1, 12, 23, 35, 46, 57], 4, num_attention_heads=64, rope_theta=1000000,
             final_logit_softcapping=30.0, tie_word_embeddings=True, **windows(5, 2048)),
        "gemma4", 60, (2, 13, 24, 36, 47, 58),
        keys={"final_logit_softcapping": 30.0, "embedding_scale": 8.0} | MIXED,
    ),
    # The window is that of its 31B sister.
    "z-lab/Kimi-K2.5-DFlash": Case(
        zlab(163840, 6, 61, [1, 12, 24, 35, 47, 58], 163838, num_attention_heads=64,
             rope_theta=50000.0, block_size=16, rope_scaling={
                 **YARN, "factor": 64.0, "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32.0,
                 "beta_slow": 1.0, "attention_factor": 1.4158883083359672}),
        "deepseek2", 61, (2, 13, 25, 36, 48, 59), keys={"rope.scaling.factor": 64.0},
    ),
    "z-lab/Qwen3.8-27B-DFlash2": Case(
        zlab(QWEN35, 5, 64, [5, 19, 33, 47, 61], 248070, architectures=["DFlash2DraftModel"],
             block_size=None, is_causal=False, rope_theta=None, inner={"block_size": 8, **DFLASH2},
             rope_parameters={"rope_theta": 10000000, "rope_type": "default"},
             **windows(5, 2048, S)),
        "qwen35", 64, (6, 20, 34, 48, 62), "DFlash2", target=MROPE,
        keys={"attention.causal": False, "selector_top_k": 16, "block_size": 8},
    ),
    "z-lab/Muse-Glimmer-30B-DFlash2": Case(
        zlab(202048, 5, 52, [1, 13, 25, 37, 49], 201818, architectures=["DFlash2DraftModel"],
             block_size=None, is_causal=False, rms_norm_eps=1e-5, rope_theta=500000.0,
             inner={"block_size": 16, "final_logit_softcapping": 20.0,
                    "output_multiplier": 0.19611613513818404, **DFLASH2}, **windows(5, 2048, S)),
        "llama", 52, (2, 14, 26, 38, 50), "DFlash2",
        keys={"logit_scale": 0.19611613513818404, "final_logit_softcapping": 20.0},
    ),
    "deepseek-ai/dspark_qwen3_4b_block7": Case(
        deepspec(), "qwen3", 36, OF_36, "DSpark", own=True,
        keys={"block_size": 7, "sample_from_anchor": True, "has_confidence_head": True},
    ),
    "deepseek-ai/dflash_qwen3_8b_block7": Case(
        deepspec(markov_rank=0, enable_confidence_head=False, markov_head_type=None),
        "qwen3", 36, OF_36, "DFlash", own=True, keys={"sample_from_anchor": True},
    ),
    "z-lab/gpt-oss-20b-DFlash": Case(
        zlab(201088, 8, 24, [1, 6, 11, 16, 21], 200000, attention_bias=True, block_size=8,
             head_dim=64, model_type="gpt_oss", initial_context_length=4096,
             num_attention_heads=64, rms_norm_eps=1e-5, rope_theta=150000),
        "gpt-oss", 24, (2, 7, 12, 17, 22), "DFlash",
    ),
    "SpecForge qwen3.5-4b-dspark": Case(
        zlab(QWEN35, 5, 32, [1, 8, 15, 22, 29], 248070, architectures=["DSparkDraftModel"],
             auto_map={"AutoModel": "dspark.DSparkDraftModel"}, tie_word_embeddings=True,
             inner={key: DSPARK_OPTIONS[key] for key in DSPARK_OPTIONS if key != "attention_mode"}),
        "qwen35", 32, (2, 9, 16, 23, 30), "DSpark", target=MROPE,
        keys={"sample_from_anchor": True, "block_size": 16},
    ),
    "RadixArk/Qwen3.8-27B-DSpark": Case(
        {**deepspec(248070, vocab_size=QWEN35, num_target_layers=64, rope_theta=10000000,
                    rope_parameters=None, target_layer_ids=[5, 19, 33, 47, 61], num_anchors=None,
                    rope_scaling={**YARN, "original_max_position_embeddings": 8192,
                                  "beta_fast": 32.0, "beta_slow": 1.0}),
         "dspark_config": {"markov_rank": 256, "mask_token_id": 248070,
                           "target_layer_ids": [5, 19, 33, 47, 61]}},
        "qwen35", 64, (6, 20, 34, 48, 62), "DSpark", target=MROPE,
        keys={"rope.scaling.type": "yarn"},
    ),
    "RedHatAI/Qwen3-30B-A3B-speculator.dflash": Case(
        speculators("dflash", QWEN, [1, 12, 23, 34, 45], 151669,
                    body={"layer_types": [S] * 5, "sliding_window": 2048,
                          "use_sliding_window": True}),
        "qwen3moe", 48, (1, 12, 23, 34, 45), own=True, reduced=True,
        keys={"attention.causal": True, "attention.sliding_window": 2048},
    ),
    # Speculators' own default where the target is Gemma; its ids and mask are not quoted anywhere.
    "RedHatAI/gemma-4-31B-it-speculator.dspark": Case(
        speculators("dspark", GEMMA, [2, 16, 30, 44, 58], 4, draft_vocab_size=GEMMA,
                    sample_from_anchor=True, markov_rank=256, markov_head_type="vanilla",
                    enable_confidence_head=True, confidence_head_with_markov=True),
        "gemma4", 60, (2, 16, 30, 44, 58), "DSpark", own=True, keys={"sample_from_anchor": True},
    ),
}  # fmt: skip
REFUSED = {
    "RedHatAI/GLM-5.2-speculator.dspark, before it said so": (
        Case(speculators("dspark", 154880, [2, 20, 39, 58, 77], 154856, draft_vocab_size=154880,
                         markov_rank=256),
             "deepseek2", 78, (), own=True),
        "no sample_from_anchor",
    ),

}  # fmt: skip


def convert_small(folder: Path, case: Case, target: Path | None = None) -> ConversionReport:
    """Writes the case with small sizes, and converts it: for a target without weights, if none."""
    folder.mkdir()
    config = _shrink(case.config)
    body = config.get("transformer_layer_config", config)
    tensors = _tensors(case, config, body)
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", tensors)
    if target is None:
        sizes = {"block_count": case.n_layer, "embedding_length": body["hidden_size"]}
        target = write_target(folder / "t.gguf", case.arch, **sizes, **case.target)
    return convert_draft(folder, target, folder / "out.gguf")


def _shrink(config: Json) -> Json:
    """Widths and vocabularies made small; the mask keeps its distance to one of the ends."""
    out = {key: value for key, value in config.items() if value is not None}
    body = dict(out.get("transformer_layer_config", {})) or out
    n_vocab, n_head_kv = body["vocab_size"], body["num_key_value_heads"]
    # DFlash2's scores of 16 candidates need rows of 272 numbers.
    wide = "conv_kernel_size" in out.get("dflash_config", {})
    body |= {
        "hidden_size": 288 if wide else 64, "intermediate_size": N_FF, "head_dim": HEAD,
        "num_attention_heads": 2 * body["num_attention_heads"] // n_head_kv,
        "num_key_value_heads": 2, "vocab_size": N_VOCAB,
    }  # fmt: skip
    for key in ("dflash_config", "dspark_config"):
        if key in out:
            out[key] = {**out[key]}
    for place in (out, out.get("dflash_config", {}), out.get("dspark_config", {})):
        mask = place.get("mask_token_id")
        if mask is not None:
            place["mask_token_id"] = mask if mask < N_VOCAB else max(N_VOCAB - (n_vocab - mask), 1)
        for key in ("markov_rank", "selector_rank"):
            if place.get(key):
                place[key] = 8
    if "transformer_layer_config" in out:
        out["transformer_layer_config"] = body
        out["draft_vocab_size"] = N_DRAFT if out["draft_vocab_size"] == 32000 else N_VOCAB
    return out


def _tensors(case: Case, config: Json, body: Json) -> Tensors:
    n_embd, options = body["hidden_size"], {**config, **config.get("dflash_config", {})}
    n_q, n_kv = body["num_attention_heads"] * HEAD, body["num_key_value_heads"] * HEAD
    taps = options.get("target_layer_ids") or options["aux_hidden_state_layer_ids"]
    n_draft = N_DRAFT if case.reduced else N_VOCAB
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (n_embd, len(taps) * n_embd), "hidden_norm.weight": (n_embd,),
        "norm.weight": (n_embd,),
    }  # fmt: skip
    if case.own:
        shapes |= {"embed_tokens.weight": (N_VOCAB, n_embd), "lm_head.weight": (n_draft, n_embd)}
    if options.get("markov_rank"):
        shapes |= {
            "markov_head.markov_w1.weight": (N_VOCAB, 8), "confidence_head.proj.bias": (1,),
            "markov_head.markov_w2.weight": (n_draft, 8),
            "confidence_head.proj.weight": (1, n_embd + 8),
        }  # fmt: skip
    is_dflash2 = "conv_kernel_size" in options
    if is_dflash2:
        shapes["candidate_selector.hidden_projection.weight"] = (8, n_embd)
        shapes["candidate_selector.predecessor_codebook"] = (N_VOCAB, 8)
        shapes["candidate_selector.successor_codebook"] = (N_VOCAB, 8)
    for i in range(body["num_hidden_layers"]):
        layer: dict[str, tuple[int, ...]] = {
            "input_layernorm": (n_embd,), "post_attention_layernorm": (n_embd,),
            "self_attn.q_proj": (n_q, n_embd), "self_attn.k_proj": (n_kv, n_embd),
            "self_attn.v_proj": (n_kv, n_embd), "self_attn.o_proj": (n_embd, n_q),
            "self_attn.q_norm": (HEAD,), "self_attn.k_norm": (HEAD,),
            "mlp.gate_proj": (N_FF, n_embd), "mlp.up_proj": (N_FF, n_embd),
            "mlp.down_proj": (n_embd, N_FF),
        }  # fmt: skip
        shapes |= {f"layers.{i}.{part}.weight": shape for part, shape in layer.items()}
        for part in "qkvo" if body.get("attention_bias") else "":
            name = f"self_attn.{part}_proj"
            shapes[f"layers.{i}.{name}.bias"] = layer[name][:1]
        for part in ("attention", "mlp") if is_dflash2 else ():
            shapes[f"layers.{i}.{part}_conv.base_kernel"] = (2, 2, n_embd)
            shapes[f"layers.{i}.{part}_conv.kernel_projection.weight"] = (4 * n_embd // 16, n_embd)
    rng = np.random.default_rng(0)
    tensors = {name: as_bf16(rng.standard_normal(shape)) for name, shape in shapes.items()}
    if case.reduced:
        ids = np.sort(rng.permutation(N_VOCAB)[:N_DRAFT]).astype(np.int64)
        tensors |= {"d2t": ids - np.arange(N_DRAFT), "t2d": np.isin(np.arange(N_VOCAB), ids)}
    return tensors


@pytest.mark.parametrize("name", CASES)
def test_published(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    report = convert_small(tmp_path / "draft", case)
    assert (report.draft, report.target_layers) == (case.draft, case.inputs)
    keys = gguf_keys(report.path)
    for key, value in case.keys.items():
        expected = pytest.approx(value) if isinstance(value, float) else value
        assert keys[f"dflash.{key}"] == expected, key
    assert 0 <= keys["tokenizer.ggml.mask_token_id"] < N_VOCAB


@pytest.mark.parametrize("name", REFUSED)
def test_published_and_refused(tmp_path: Path, name: str) -> None:
    case, message = REFUSED[name]
    with pytest.raises(ConversionError, match=message):
        convert_small(tmp_path / "draft", case)
