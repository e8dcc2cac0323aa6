"""A table of configurations as they are published: supported, or refused by name.

Sizes and options are those of the published files (SpecForge's configs folder, ModelOpt's export
template, speculators' Eagle3SpeculatorConfig).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pyllama_spec.convert.eagle3 import check_kind, read_config
from pyllama_spec.convert.layer_ids import resolve
from pyllama_spec.convert.layout import CheckpointTensors
from pyllama_spec.errors import ConversionError
from pyllama_spec.gguf.tensors import SourceTensor
from tests.convert.tools import Json

Shapes = dict[str, tuple[int, ...]]
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
MODELOPT = {
    "use_aux_hidden_state": True, "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True, "use_mtp_layernorm": False, "next_layer_regular": True,
    "parallel_draft_step": 1, "parallel_draft_heads_num_layers": 1,
}  # fmt: skip


def flat(
    n_embd: int, n_ff: int, n_head: int, n_head_kv: int, n_vocab: int, n_draft: int | None = 32000,
    **more: Any,
) -> Json:  # fmt: skip
    """A config.json of SafeAILab, SpecForge or NVIDIA."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_act": "silu",
        "hidden_size": n_embd, "intermediate_size": n_ff, "num_attention_heads": n_head,
        "num_key_value_heads": n_head_kv, "vocab_size": n_vocab, "draft_vocab_size": n_draft,
        "num_hidden_layers": 1, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": True,
        "initializer_range": 0.02, "pad_token_id": 0, **more,
    }  # fmt: skip


def nested(top: Json, body: Json) -> Json:
    """A config.json of speculators: sizes in an object of their own."""
    sizes = {k: v for k, v in body.items() if k not in ("draft_vocab_size", "architectures")}
    return {
        "architectures": ["Eagle3DraftModel"], "speculators_model_type": "eagle3",
        "draft_vocab_size": body["draft_vocab_size"], "norm_before_residual": True,
        "norm_before_fc": False, "fc_norm": False, "norm_output": False,
        "target_hidden_size": None, "eagle_aux_hidden_state_layer_ids": None,
        "embed_requires_grad": False, "transformer_layer_config": sizes, **top,
    }  # fmt: skip


SUPPORTED: dict[str, tuple[Json, int, tuple[int, ...]]] = {
    "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B": (
        flat(4096, 14336, 32, 8, 128256, architectures=["LlamaForCausalLM"]),
        32, (2, 16, 29),
    ),
    "yuhuili/EAGLE3-Vicuna1.3-13B": (
        flat(5120, 13824, 40, 40, 32000, architectures=["LlamaForCausalLM"],
             num_hidden_layers=40, num_key_value_heads=None),
        40, (2, 20, 37),
    ),
    "NVIDIA gpt-oss-120b-Eagle3-v3": (
        flat(2880, 17280, 64, 8, 201088, head_dim=64, norm_before_fc=True,
             eagle_config={**MODELOPT, "norm_before_fc": True,
                           "eagle_aux_hidden_state_layer_ids": [24, 30, 36]}),
        36, (24, 30, 36),
    ),
    "ModelOpt, whole vocabulary and the target's output": (
        flat(4096, 14336, 32, 8, 128256, None, rope_scaling={"rope_type": "default",
             "rope_theta": 10000}, rope_theta=10000,
             eagle_config={**MODELOPT, "eagle_aux_hidden_state_layer_ids": []}),
        32, (2, 16, 29),
    ),
    "RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3": (
        nested({}, flat(4096, 14336, 32, 8, 128256, head_dim=128, rope_theta=5e5,
                        rope_scaling=LLAMA3)),
        32, (2, 16, 29),
    ),
    "RedHatAI/gemma-4-speculator.eagle3": (
        nested({"target_hidden_size": 2816, "norm_before_fc": True, "norm_output": True,
                "eagle_aux_hidden_state_layer_ids": [2, 15, 29]},
               flat(2048, 8192, 32, 8, 262144, head_dim=64, rope_theta=1e6)),
        30, (2, 15, 29),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SUPPORTED)
def test_supported(name: str) -> None:
    config, n_layer, layers = SUPPORTED[name]
    read = read_config(config)
    assert (
        resolve(read.flat_ids, read.nested_ids, n_layer, len(layers), None).target_layers == layers
    )
    assert ("rope_freqs.weight" in read.rope.tensors) == (str(LLAMA3) in str(config))
    assert read.flags["norm_before_residual"] == ("speculators_model_type" in config)


LLAMA = flat(4096, 14336, 32, 8, 128256)
SHAPES: Shapes = {
    "fc.weight": (4096, 12288), "midlayer.hidden_norm.weight": (4096,),
    "midlayer.self_attn.q_proj.weight": (4096, 8192),
}  # fmt: skip
EAGLE1: Shapes = {"fc.weight": (4096, 8192), "layers.0.self_attn.q_proj.weight": (4096, 4096)}
PLAIN: Shapes = {
    "model.embed_tokens.weight": (128256, 4096), "lm_head.weight": (128256, 4096),
    "model.layers.0.self_attn.q_proj.weight": (4096, 4096),
}  # fmt: skip
REFUSED: list[tuple[Json, Shapes, str]] = [
    ({"parallel_drafting": True}, SHAPES, "parallel_drafting"),
    ({"speculators_model_type": "hydra", "transformer_layer_config": LLAMA}, SHAPES, "hydra"),
    ({"kv_lora_rank": 512}, SHAPES, "kv_lora_rank"),
    ({"compression_config": {}}, SHAPES, "compression_config"),
    ({"eagle_config": MODELOPT | {"use_last_layernorm": False}}, SHAPES, "use_last_layernorm"),
    ({"eagle_config": MODELOPT | {"parallel_draft_step": 4}}, SHAPES, "parallel_draft_step"),
    ({"hidden_act": "gelu"}, SHAPES, "hidden_act"),
    ({"layer_types": ["sliding_attention"]}, SHAPES, "sliding_attention"),
    ({"logit_scale": 0.0625}, SHAPES, "logit_scale"),
    ({"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}, SHAPES, "mrope"),
    ({"speculators_model_type": "eagle3"}, SHAPES, "transformer_layer_config"),
    # The tensors decide the kind: SafeAILab's heads use the name LlamaForCausalLM too.
    ({"architectures": ["LlamaForCausalLM"]}, PLAIN, "fc.weight"),
    ({"architectures": ["LlamaForCausalLM"]}, EAGLE1, "EAGLE-1 or EAGLE-2"),
    ({}, {**EAGLE1, "layers.0.hidden_norm.weight": (4096,)}, "q_proj"),
]  # fmt: skip


@pytest.mark.parametrize(("config", "shapes", "name"), REFUSED)
def test_refused(config: Json, shapes: Shapes, name: str) -> None:
    def read(config: Json, shapes: Shapes) -> None:
        tensors = {n: SourceTensor(n, "F32", s, lambda: np.zeros(0)) for n, s in shapes.items()}
        check_kind(CheckpointTensors(tensors))
        read_config(config)

    read(LLAMA, SHAPES)
    with pytest.raises(ConversionError, match=name):
        read(LLAMA | config, shapes)
