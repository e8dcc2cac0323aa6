"""A table of published configurations.

Options, ids, windows, blocks, RoPE and layer counts are those of the published config.json files as
public repositories quote them (z-lab/dflash, sgl-project/SpecForge, deepseek-ai/DeepSpec, and the
tests of readers). Each case names what was not found.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from pyllama_spec.convert.dflash import read_config
from pyllama_spec.convert.layer_ids import to_inputs
from tests.convert.tools import Json

QWEN, QWEN35, GEMMA = 151936, 248320, 262144
F, S = "full_attention", "sliding_attention"
YARN = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096}


@dataclass
class Case:
    """One published file."""

    config: Json
    n_layer: int
    """The target's number of layers."""
    inputs: tuple[int, ...]
    """Which the GGUF should name."""
    keys: Json = field(default_factory=dict)
    """Further ones that the GGUF should have."""


def zlab(n_vocab: int, n_layer: int, n_target: int, ids: list[int], mask: int, **more: Any) -> Json:
    """A flat config.json; `inner` goes into dflash_config."""
    inner = {"mask_token_id": mask, "target_layer_ids": ids, **more.pop("inner", {})}
    return {
        "architectures": ["DFlashDraftModel"], "attention_bias": False, "attention_dropout": 0.0,
        "auto_map": {"AutoModel": "dflash.DFlashDraftModel"}, "block_size": 16, "bos_token_id": 1,
        "dflash_config": inner, "dtype": "bfloat16", "eos_token_id": 2, "head_dim": 128,
        "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 12288,
        "initializer_range": 0.02, "layer_types": [F] * n_layer,
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
            "attention_bias", "head_dim", "hidden_act", "hidden_size", "intermediate_size",
            "max_position_embeddings", "model_type",
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


DFLASH2 = {"conv_group_size": 16, "conv_kernel_size": 2, "selector_rank": 256, "selector_top_k": 16}
OF_36 = (2, 10, 18, 26, 34)
TAPS_OF_QWEN35 = [1, 5, 9, 13, 17, 21, 25, 29]
CASES = {
    "z-lab/Qwen3.5-4B-DFlash": Case(
        zlab(QWEN35, 6, 32, TAPS_OF_QWEN35, 248077, block_size=None, tie_word_embeddings=True,
             bos_token_id=None, rope_theta=None, transformers_version="5.7.0",
             rope_parameters={"rope_theta": 10000000, "rope_type": "default"},
             inner={"block_size": 16}, **windows(6, 4096)), 32, (2, 6, 10, 14, 18, 22, 26, 30),
        {"attention.sliding_window": 4096,
         "attention.sliding_window_pattern": (True,) * 5 + (False,)},
    ),
    "z-lab/Kimi-K2.5-DFlash": Case(
        zlab(163840, 6, 61, [1, 12, 24, 35, 47, 58], 163838, num_attention_heads=64,
             rope_theta=50000.0, block_size=16, rope_scaling={
                 **YARN, "factor": 64.0, "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32.0,
                 "beta_slow": 1.0, "attention_factor": 1.4158883083359672}),
        61, (2, 13, 25, 36, 48, 59),
        {"rope.scaling.factor": 64.0},
    ),
    "z-lab/Muse-Glimmer-30B-DFlash2": Case(
        zlab(202048, 5, 52, [1, 13, 25, 37, 49], 201818, architectures=["DFlash2DraftModel"],
             block_size=None, is_causal=False, rms_norm_eps=1e-5, rope_theta=500000.0,
             inner={"block_size": 16, "final_logit_softcapping": 20.0,
                    "output_multiplier": 0.19611613513818404, **DFLASH2}, **windows(5, 2048, S)),
        52, (2, 14, 26, 38, 50),
        {"logit_scale": 0.19611613513818404, "final_logit_softcapping": 20.0},
    ),
    "deepseek-ai/dspark_qwen3_4b_block7": Case(
        deepspec(), 36, OF_36,
        {"block_size": 7},
    ),
    "RadixArk/Qwen3.8-27B-DSpark": Case(
        {**deepspec(248070, vocab_size=QWEN35, num_target_layers=64, rope_theta=10000000,
                    rope_parameters=None, target_layer_ids=[5, 19, 33, 47, 61], num_anchors=None,
                    rope_scaling={**YARN, "original_max_position_embeddings": 8192,
                                  "beta_fast": 32.0, "beta_slow": 1.0}),
         "dspark_config": {"markov_rank": 256, "mask_token_id": 248070,
                           "target_layer_ids": [5, 19, 33, 47, 61]}}, 64, (6, 20, 34, 48, 62),
        {"rope.scaling.type": "yarn"},
    ),
    "RedHatAI/Qwen3-30B-A3B-speculator.dflash": Case(
        speculators("dflash", QWEN, [1, 12, 23, 34, 45], 151669,
                    body={"layer_types": [S] * 5, "sliding_window": 2048,
                          "use_sliding_window": True}), 48, (1, 12, 23, 34, 45),
        {"attention.causal": True, "attention.sliding_window": 2048},
    ),
    # Speculators' own default where the target is Gemma; its ids and mask are not quoted anywhere.
    "RedHatAI/gemma-4-31B-it-speculator.dspark": Case(
        speculators("dspark", GEMMA, [2, 16, 30, 44, 58], 4, draft_vocab_size=GEMMA,
                    sample_from_anchor=True, markov_rank=256, markov_head_type="vanilla",
                    enable_confidence_head=True, confidence_head_with_markov=True),
        60, (2, 16, 30, 44, 58),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_published(name: str) -> None:
    case, read = CASES[name], read_config(CASES[name].config)
    ids = to_inputs(read.layer_ids, read.counted, case.n_layer, len(case.inputs), -1)
    assert ids.target_layers == case.inputs
    keys = {
        "block_size": read.block_size, **read.numbers, **read.rope.keys, **read.mask_keys,
    }  # fmt: skip
    assert {name: keys[name] for name in case.keys} == case.keys
