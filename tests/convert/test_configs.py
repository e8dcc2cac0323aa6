"""A table of configurations as they are published, without weights: supported, or refused by name.

Sizes and options are those of the published files (SpecForge's configs folder, ModelOpt's export
template, speculators' Eagle3SpeculatorConfig); the tensors are those of the layout.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from pyllama_spec.convert.eagle3.config import DraftConfig, read_config, resolve
from pyllama_spec.convert.eagle3.convert import refuse_other_kinds
from pyllama_spec.convert.eagle3.layout import Plan, plan_tensors
from pyllama_spec.errors import ConversionError
from pyllama_spec.gguf.tensors import Raw, SourceTensor

Json = dict[str, Any]
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


@dataclass
class Case:
    """One published file."""

    config: Json
    target: tuple[int, int]
    """Layers and width."""
    layers: tuple[int, ...]
    prefix: str = "midlayer."
    n_aux: int = 3
    without: tuple[str, ...] = ()
    more: Shapes = field(default_factory=dict)

    def shapes(self) -> Shapes:
        """The tensors of the layout."""
        body = self.config.get("transformer_layer_config", self.config)
        n_embd, n_ff, n_head = (
            body["hidden_size"], body["intermediate_size"], body["num_attention_heads"],
        )  # fmt: skip
        size = body.get("head_dim") or n_embd // n_head
        n_kv = (body.get("num_key_value_heads") or n_head) * size
        n_draft = self.config["draft_vocab_size"] or body["vocab_size"]
        shapes: Shapes = {
            "fc.weight": (n_embd, self.n_aux * self.target[1]), "norm.weight": (n_embd,),
            "lm_head.weight": (n_draft, n_embd), "d2t": (n_draft,), "t2d": (body["vocab_size"],),
            "embed_tokens.weight": (body["vocab_size"], n_embd),
        }  # fmt: skip
        n_layer = 1 if self.prefix == "midlayer." else body["num_hidden_layers"]
        for i in range(n_layer):
            prefix = self.prefix.replace("0", str(i))
            n_in = n_embd if i else 2 * n_embd
            shapes |= {
                f"{prefix}input_layernorm.weight": (n_embd,),
                f"{prefix}post_attention_layernorm.weight": (n_embd,),
                f"{prefix}self_attn.q_proj.weight": (n_head * size, n_in),
                f"{prefix}self_attn.k_proj.weight": (n_kv, n_in),
                f"{prefix}self_attn.v_proj.weight": (n_kv, n_in),
                f"{prefix}self_attn.o_proj.weight": (n_embd, n_head * size),
                f"{prefix}mlp.gate_proj.weight": (n_ff, n_embd),
                f"{prefix}mlp.up_proj.weight": (n_ff, n_embd),
                f"{prefix}mlp.down_proj.weight": (n_embd, n_ff),
            }
            if i == 0:
                shapes[f"{prefix}hidden_norm.weight"] = (n_embd,)
            if body.get("model_type") == "qwen3":
                shapes |= {f"{prefix}self_attn.{p}_norm.weight": (size,) for p in "qk"}
        return {k: v for k, v in (shapes | self.more).items() if k not in self.without}

    def tensors(self) -> dict[str, SourceTensor]:
        """The same with a d2t whose ids are spread over the vocabulary; weights are never read."""
        body = self.config.get("transformer_layer_config", self.config)
        n_draft, n_vocab = self.config["draft_vocab_size"] or body["vocab_size"], body["vocab_size"]
        ids = np.arange(n_draft) * n_vocab // n_draft

        def tensor(name: str, shape: tuple[int, ...]) -> SourceTensor:
            def read() -> Raw:
                assert name in ("d2t", "t2d"), f"{name} is read while it is planned"
                mask: Raw = np.isin(np.arange(n_vocab), ids).astype(np.uint8)
                return mask if name == "t2d" else ids - np.arange(n_draft)

            return SourceTensor(name, {"d2t": "I64", "t2d": "BOOL"}.get(name, "BF16"), shape, read)

        return {name: tensor(name, shape) for name, shape in self.shapes().items()}


def plan(case: Case) -> tuple[DraftConfig, Plan, tuple[int, ...]]:
    """All that happens before weights are read."""
    tensors = case.tensors()
    refuse_other_kinds(case.config, {name: t.shape for name, t in tensors.items()})
    config = read_config(case.config)
    ids = resolve(config.layer_ids, case.target[0], case.n_aux, None)
    planned = plan_tensors(
        config, tensors, n_target_layers=case.n_aux, target_n_embd=case.target[1],
        n_vocab=config.n_vocab,
    )  # fmt: skip
    return config, planned, ids.target_layers


def fc_norms(n: int, width: int) -> Shapes:
    """Norms, one per target layer."""
    return {f"fc_norm.{i}.weight": (width,) for i in range(n)}


SUPPORTED = {
    "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B": Case(
        flat(4096, 14336, 32, 8, 128256, architectures=["LlamaForCausalLM"]),
        (32, 4096), (2, 16, 29), without=("embed_tokens.weight",),
    ),
    "yuhuili/EAGLE3-Vicuna1.3-13B": Case(
        flat(5120, 13824, 40, 40, 32000, architectures=["LlamaForCausalLM"],
             num_hidden_layers=40, num_key_value_heads=None),
        (40, 5120), (2, 20, 37), without=("d2t", "t2d"),
    ),
    "SpecForge qwen3-235B-A22B": Case(
        flat(4096, 24576, 64, 4, 151936, head_dim=128, rope_theta=1e6, rope_scaling=None,
             eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 46, 90],
                           "use_aux_hidden_state": True}),
        (94, 4096), (2, 47, 91),
    ),
    "SpecForge qwen3-30B-A3B-eagle3.1": Case(
        flat(2048, 12288, 32, 4, 151936, head_dim=128, rope_theta=1e6, fc_norm=True,
             norm_output=True, sliding_window=None, use_sliding_window=False, max_window_layers=48),
        (48, 2048), (2, 24, 45), more=fc_norms(3, 2048),
    ),
    "SpecForge qwen3.5-4b": Case(
        flat(2560, 9216, 16, 4, 248320, head_dim=256, rope_theta=10000000, rope_scaling=None,
             rms_norm_eps=1e-6, max_position_embeddings=32768, attention_dropout=0.0,
             use_sliding_window=False),
        (32, 2560), (2, 16, 29),
    ),
    "SpecForge qwen3.5-35b-a3b": Case(
        flat(2048, 16384, 16, 2, 248320, head_dim=256, rope_theta=10000000, num_experts=256,
             decoder_sparse_step=1),
        (40, 2048), (2, 20, 37),
    ),
    "NVIDIA Llama-4-Maverick": Case(
        flat(5120, 32768, 40, 8, 202048, rope_theta=5e5, rope_scaling=LLAMA3, attention_bias=False,
             mlp_bias=False,
             eagle_config={**MODELOPT, "eagle_aux_hidden_state_layer_ids": [1, 23, 44]}),
        (48, 5120), (2, 24, 45), without=("embed_tokens.weight", "t2d"),
    ),
    "NVIDIA gpt-oss-120b-Eagle3-v3": Case(
        flat(2880, 17280, 64, 8, 201088, head_dim=64, norm_before_fc=True,
             eagle_config={**MODELOPT, "norm_before_fc": True,
                           "eagle_aux_hidden_state_layer_ids": [24, 30, 36]}),
        (36, 2880), (24, 30, 36), prefix="layers.0.", without=("embed_tokens.weight", "t2d"),
        more={"input_norm.weight": (8640,)},
    ),
    "ModelOpt, whole vocabulary and the target's output": Case(
        flat(4096, 14336, 32, 8, 128256, None, rope_scaling={"rope_type": "default",
             "rope_theta": 10000}, rope_theta=10000,
             eagle_config={**MODELOPT, "eagle_aux_hidden_state_layer_ids": []}),
        (32, 4096), (2, 16, 29), prefix="layers.0.",
        without=("embed_tokens.weight", "lm_head.weight", "d2t", "t2d"),
    ),
    "RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3": Case(
        nested({}, flat(4096, 14336, 32, 8, 128256, head_dim=128, rope_theta=5e5,
                        rope_scaling=LLAMA3)),
        (32, 4096), (2, 16, 29), prefix="layers.0.",
        more={"verifier_norm.weight": (4096,), "verifier_lm_head.weight": (32000, 4096)},
    ),
    "RedHatAI/Qwen3-32B-speculator.eagle3": Case(
        nested({"eagle_aux_hidden_state_layer_ids": [2, 32, 61]},
               flat(5120, 25600, 64, 8, 151936, model_type="qwen3", head_dim=128,
                    rope_parameters={"rope_type": "default", "rope_theta": 1e6},
                    layer_types=["full_attention"])),
        (64, 5120), (2, 32, 61), prefix="layers.0.",
    ),
    "RedHatAI/gemma-4-speculator.eagle3": Case(
        nested({"target_hidden_size": 2816, "norm_before_fc": True, "norm_output": True,
                "eagle_aux_hidden_state_layer_ids": [2, 15, 29]},
               flat(2048, 8192, 32, 8, 262144, head_dim=64, rope_theta=1e6)),
        (30, 2816), (2, 15, 29), prefix="layers.0.", more={"input_norm.weight": (8448,)},
    ),
    "nm-testing, two layers": Case(
        nested({}, flat(4096, 14336, 32, 8, 128256, num_hidden_layers=2)),
        (32, 4096), (2, 16, 29), prefix="layers.0.",
    ),
    "Dogacel/specdrift, five layers of the target": Case(
        flat(2880, 11520, 64, 8, 201088, head_dim=64, num_aux_hidden_states=5, fc_norm=True,
             norm_output=True, eagle_aux_hidden_state_layer_ids=[2, 9, 18, 27, 33]),
        (36, 2880), (2, 9, 18, 27, 33), n_aux=5, more=fc_norms(5, 2880),
    ),
    "Baichuan, gated attention": Case(
        flat(4096, 14336, 32, 8, 133120, head_dim=128, attn_output_gate=True),
        (40, 4096), (2, 20, 37), more={"midlayer.self_attn.q_proj.weight": (8192, 8192)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SUPPORTED)
def test_supported(name: str) -> None:
    case = SUPPORTED[name]
    config, planned, layers = plan(case)
    assert layers == case.layers
    by_name = {t.name: t for t in planned.tensors}
    used = {t.source.name for t in planned.tensors if t.source is not None}
    ignored = {n for n in case.shapes() if n in ("d2t", "t2d") or n.startswith("verifier_")}
    assert used == set(case.shapes()) - ignored
    has_table = "d2t" in case.shapes()
    assert ("d2t" in by_name) == has_table
    assert planned.n_draft_vocab == (case.config["draft_vocab_size"] if has_table else None)
    assert ("rope_freqs.weight" in by_name) == (LLAMA3 in _objects(case.config))
    assert config.norm_before_residual == ("speculators_model_type" in case.config)


def _objects(config: Json) -> list[Json]:
    inner = [v for v in config.values() if isinstance(v, dict)]
    return inner + [w for v in inner for w in v.values() if isinstance(w, dict)]


LLAMA = flat(4096, 14336, 32, 8, 128256)
BASE = Case(LLAMA, (32, 4096), (2, 16, 29))


def changed(name: str | None = None, shape: tuple[int, ...] = (1,), **config: Any) -> Case:
    """A llama head with other options, or one more tensor."""
    return Case(LLAMA | config, (32, 4096), (2, 16, 29), more={name: shape} if name else {})


def modelopt(**options: Any) -> Case:
    """A head as NVIDIA ModelOpt exports it, with other options in eagle_config."""
    return changed(eagle_config=MODELOPT | options)


EAGLE1 = {"fc.weight": (4096, 8192), "layers.0.self_attn.q_proj.weight": (4096, 4096)}
PLAIN = {
    "model.embed_tokens.weight": (128256, 4096), "lm_head.weight": (128256, 4096),
    "model.layers.0.self_attn.q_proj.weight": (4096, 4096),
}  # fmt: skip
REFUSED = [
    (changed(speculators_model_type="peagle"), "P-EAGLE head, which drafts in parallel"),
    (changed(parallel_drafting=True), "P-EAGLE head, .*parallel_drafting"),
    (changed(dflash_config={"block_size": 16}), "DFlash draft, .*dflash_config"),
    (changed("mtp.fc.weight"), "multi-token-prediction head, .*mtp.fc.weight"),
    (changed(speculators_model_type="hydra"), "a speculator of kind 'hydra'"),
    (
        changed("midlayer.self_attn.kv_a_proj_with_mqa.weight"),
        r"multi-head latent attention \(MLA\), as for DeepSeek and Kimi.*kv_a_proj_with_mqa",
    ),
    (changed(kv_lora_rank=512), "kv_lora_rank: .*multi-head latent attention"),
    (changed("midlayer.mlp.experts.0.up_proj.weight"), "mixture of experts, .*experts.0"),
    (changed("medusa_head.0.linear.weight"), "Medusa heads, .*medusa_head"),
    (changed("midlayer.self_attn.q_proj.lora_A.weight"), "LoRA adapter; merge it"),
    (changed(compression_config={}), "compression_config: the checkpoint is quantised"),
    (modelopt(use_last_layernorm=False), "use_last_layernorm is false"),
    (modelopt(parallel_draft_step=4), "parallel_draft_step is above 1"),
    (changed(hidden_act="gelu"), "hidden_act is 'gelu', not 'silu'"),
    (changed(layer_types=["sliding_attention"]), r"not supported \(sliding_attention\)"),
    (changed(logit_scale=0.0625), "logit_scale is 0.0625: scaling"),
    (changed(rope_scaling={"type": "mrope", "mrope_section": [16, 24, 24]}), "'mrope' is not"),
    (changed(speculators_model_type="eagle3"), "no transformer_layer_config"),
]  # fmt: skip


@pytest.mark.parametrize(("case", "message"), REFUSED, ids=[m for _, m in REFUSED])
def test_refused(case: Case, message: str) -> None:
    plan(BASE)
    with pytest.raises(ConversionError, match=message):
        plan(case)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (PLAIN, "not an EAGLE-3 draft: the matrix fc.weight is missing"),
        (EAGLE1, "EAGLE-1 or EAGLE-2 head, which is not supported: fc reads a token and one row"),
        (
            {**EAGLE1, "layers.0.hidden_norm.weight": (4096,)},
            r"q_proj of its first layer \[4096, 4096\] reads 4096 columns, and not 8192",
        ),
    ],
)
def test_other_models(shapes: Shapes, message: str) -> None:
    """The tensors decide the kind: SafeAILab's heads use the name LlamaForCausalLM too."""
    with pytest.raises(ConversionError, match=message):
        refuse_other_kinds({"architectures": ["LlamaForCausalLM"]}, shapes)
