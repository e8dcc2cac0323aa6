"""EAGLE-3 heads of SafeAILab, SpecForge, speculators / RedHat and NVIDIA (docs/convert.md).

docs/eagle3.md lists the GGUF's names and shapes. The tensors and options decide what a checkpoint
is: architectures mislead (EAGLE-3 heads of SafeAILab are called LlamaForCausalLM).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pyllama_spec.convert.checkpoint import Checkpoint
from pyllama_spec.convert.config import Fields, Sizes, body_of, check_supported, read_sizes
from pyllama_spec.convert.draft import Draft, Source, sizes_of
from pyllama_spec.convert.layer_ids import Ids, resolve
from pyllama_spec.convert.layout import (
    ATTENTION,
    MLP,
    CheckpointTensors,
    Facts,
    Row,
    Table,
    plan_tensors,
)
from pyllama_spec.convert.rope import Rope, read_rope
from pyllama_spec.convert.vocabulary import Vocabulary, take_vocabulary
from pyllama_spec.errors import ConversionError
from pyllama_spec.gguf.tensors import Rows

# The first layer reads a token and a row side by side: n_in is twice the width there.
TABLE = Table(
    outer=(
        Row("fc.weight", "fc.weight", "n_embd n_features"),
        Row("fc.bias", "fc.bias", "n_embd", need="maybe"),
        Row("enc.output_norm.weight", "input_norm.weight", "n_features", need="norm_before_fc"),
        Row("enc.output_norm.{i}.weight", "fc_norm.{i}.weight", "target_n_embd", need="fc_norm"),
        Row("output_norm.weight", "norm.weight", "n_embd"),
        Row("token_embd.weight", "embed_tokens.weight", "n_trained n_embd", need="embedding",
            n_rows="n_vocab"),
        Row("output.weight", "lm_head.weight", "n_output n_embd", need="output",
            n_rows="n_rows"),
        Row("d2t", "d2t", "n_output", need="never"),
    ),
    layer=(
        Row("attn_norm.weight", "input_layernorm.weight", "n_embd"),
        Row("attn_norm_2.weight", "hidden_norm.weight", "n_embd", need="first"),
        *ATTENTION,
        Row("ffn_norm.weight", "post_attention_layernorm.weight", "n_embd"),
        *MLP,
    ),
)  # fmt: skip
FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
_PARALLEL = "a head that drafts in parallel is not supported"
_BUILD = "a head of that build is not supported"
_SUPPORTED = (
    ("speculators_model_type", ("eagle3",), "this kind of draft is not supported"),
    ("medusa_num_heads", (), "Medusa heads are not supported"),
    ("parallel_drafting", (False,), f"P-EAGLE, {_PARALLEL}"),
    ("parallel_draft_step", (1,), _PARALLEL),
    ("use_aux_hidden_state", (True,),
     "the head reads the last hidden row alone: EAGLE-1 and EAGLE-2 are not supported"),
    ("use_input_layernorm_in_first_layer", (True,), _BUILD),
    ("use_last_layernorm", (True,), _BUILD),
    ("use_mtp_layernorm", (False,), _BUILD),
    ("next_layer_regular", (True,), _BUILD),
    ("hidden_act", ("silu",), "no other activation than 'silu' is supported"),
    ("use_sliding_window", (False,), "attention over anything but the whole text is not supported"),
    ("is_causal", (True,), "it is not a decoder"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A head as its config.json describes it; None is for what the file does not say."""

    sizes: Sizes
    n_target_layers: int | None
    flags: Mapping[str, bool]  # by the names of FLAGS; docs/eagle3.md explains them
    output_gate: bool
    has_bias: bool | None
    has_qk_norm: bool  # whether its kind of decoder layer always has q and k norms
    rope: Rope
    flat_ids: Ids | None  # at the top level, and the others in eagle_config
    nested_ids: Ids | None
    notes: tuple[str, ...]


def read_config(config: Mapping[str, Any]) -> Config:
    """Reads the config of a head."""
    top = Fields(config)
    body, eagle = body_of(top), top.inner("eagle_config")
    is_speculators, options = body is not top, eagle.beside(top, body)
    check_supported(options, _SUPPORTED)
    kinds = set(body.names("layer_types"))
    if kinds - {"full_attention"}:
        raise body.refuse("layer_types", "attention over anything but the whole text is missing")
    if is_speculators and not options.has("norm_before_residual"):
        # Without it speculators itself takes false and vLLM true.
        why = "readers of this layout disagree on what its absence means"
        raise top.fail("norm_before_residual", why)
    flags = {name: eagle.beside(top).flag(name) for name in FLAGS}
    if flags["norm_before_fc"] and flags["fc_norm"]:
        raise ConversionError(
            "config.json: norm_before_fc and fc_norm are both true: features would be normed twice"
        )
    sizes = read_sizes(top, body)
    rope = read_rope(body, sizes.head_size)
    notes = list(rope.notes)
    if flags["norm_output"] and not is_speculators:
        # sgl-project/SpecForge pull request 879: before it, true meant the plain EAGLE-3 head.
        notes.append(
            "norm_output is true: the normed row is handed on, as vLLM and SGLang do; SpecForge up "
            "to September 2026 trained with the row as it is under the same name"
        )
    return Config(
        sizes=sizes,
        n_target_layers=top.optional_size("num_aux_hidden_states"),
        flags=flags,
        output_gate=body.flag("attn_output_gate"),
        has_bias=body.optional_flag("attention_bias"),
        has_qk_norm=is_speculators and body.get("model_type") == "qwen3",
        rope=rope,
        flat_ids=top.ids(LAYER_IDS),
        nested_ids=eagle.ids(LAYER_IDS),
        notes=tuple(notes),
    )


def make_eagle3(source: Source) -> Draft:
    """Plans the conversion of a head."""
    config = read_config(source.checkpoint.config)
    tensors, target, sizes = source.tensors, source.target, config.sizes
    check_kind(tensors)
    n_wanted = sizes.count_target_layers(tensors.matrix("fc.weight"), target)
    if config.n_target_layers not in (None, n_wanted):
        raise ConversionError(
            f"config.json says num_aux_hidden_states {config.n_target_layers}, and fc.weight reads "
            f"{n_wanted} rows of {target.n_embd}"
        )
    ids = resolve(config.flat_ids, config.nested_ids, target.n_layer, n_wanted, source.layer_ids)
    notes = list(config.notes)
    n_layer = _count_layers(sizes, source.checkpoint, tensors, notes)
    vocabulary = take_vocabulary(tensors, sizes, target.n_vocab)
    notes += vocabulary.notes
    rest = _facts(config, tensors, vocabulary, n_wanted, target.n_embd)
    first = replace(
        rest,
        sizes={**rest.sizes, "n_in": 2 * sizes.n_embd},
        needs={**rest.needs, "first": True},
    )
    planned = plan_tensors(TABLE, tensors, [first, *[rest] * (n_layer - 1)], notes)
    keys: dict[str, Any] = {
        **sizes.keys(),
        "block_count": n_layer,
        "vocab_size": target.n_vocab,
        "target_hidden_size": target.n_embd,
        **config.rope.keys,
    }
    # Only those that are on: stock llama.cpp knows the first two.
    keys |= {name: True for name, is_on in config.flags.items() if is_on}
    if config.output_gate:
        keys["attention.output_gate"] = True
    return Draft(
        arch="eagle3",
        name="EAGLE-3",
        keys=keys,
        ids=ids,
        tensors=(*planned, *config.rope.planned),
        n_layer=n_layer,
        n_draft_vocab=vocabulary.n_reduced,
        notes=tuple(notes),
    )


def check_kind(tensors: CheckpointTensors) -> None:
    """Refuses heads without hidden_norm, and projections that do not read two rows side by side."""
    n_out, n_columns = tensors.matrix("fc.weight")
    if tensors.find("layers.0.hidden_norm.weight") is None:
        what = "an EAGLE-1 or EAGLE-2 head" if n_columns == 2 * n_out else "not an EAGLE-3 draft"
        raise ConversionError(
            f"this is {what}, which is not supported: its first layer has no hidden_norm.weight"
        )
    q = tensors.find("layers.0.self_attn.q_proj.weight")
    if q is not None and q.shape[1:] == (n_out,):
        raise ConversionError(
            f"this is not an EAGLE-3 draft: {q.name} {list(q.shape)} reads {n_out} columns, and "
            f"not {2 * n_out}, a token and a row side by side"
        )


def _count_layers(
    sizes: Sizes, checkpoint: Checkpoint, tensors: CheckpointTensors, notes: list[str]
) -> int:
    is_midlayer = any("midlayer." in name for name in checkpoint.tensors)
    if is_midlayer and tensors.layers() == {0}:
        if sizes.n_layer != 1:  # yuhuili/EAGLE3-Vicuna1.3-13B: the number is the target's.
            notes.append(f"one layer, though config.json says num_hidden_layers {sizes.n_layer}")
        return 1
    tensors.check_layers(sizes.n_layer)
    return sizes.n_layer


def _facts(
    config: Config,
    tensors: CheckpointTensors,
    vocabulary: Vocabulary,
    n_target_layers: int,
    target_n_embd: int,
) -> Facts:
    """The facts of a layer after the first one."""
    sizes = config.sizes
    wider = (
        None
        if sizes.n_embd == target_n_embd
        else f"the head is {sizes.n_embd} wide and the target is not"
    )
    if sizes.is_tied and vocabulary.is_whole:
        tensors.share("lm_head.weight", "embed_tokens.weight")
    output: str | None = wider
    if not vocabulary.is_whole:
        output = "the head has a vocabulary of its own, and the target's output has another"
    elif sizes.is_tied:
        output = "tie_word_embeddings ties it to embed_tokens.weight, which is missing as well"
    has_bias = config.has_bias
    if has_bias is None:
        has_bias = bool(tensors.matching(r"self_attn\.[qkvo]_proj\.bias$"))
    n_gates = sizes.head_size if config.output_gate else 0
    return Facts(
        sizes={
            **sizes_of(sizes, vocabulary, n_target_layers, target_n_embd),
            "n_q_gated": sizes.n_head * (sizes.head_size + n_gates),
            "n_in": sizes.n_embd,
        },
        needs={
            "maybe": None,
            "never": False,
            "first": False,
            "norm_before_fc": config.flags["norm_before_fc"],
            "fc_norm": config.flags["fc_norm"],
            "embedding": wider,
            "output": output,
            "bias": has_bias,
            "o_bias": None if has_bias else False,
            "qk_norm": config.has_qk_norm or bool(tensors.matching(r"self_attn\.[qk]_norm\.")),
        },
        orders={
            "q": neighbour_rows(sizes.n_head, sizes.head_size, n_gates),
            "k": neighbour_rows(sizes.n_head_kv, sizes.head_size),
            "head": neighbour_rows(1, sizes.head_size),
        },
        made=vocabulary.tensors,
    )


def neighbour_rows(n_head: int, head_size: int, n_between: int = 0) -> Rows:
    """The row order that turns RoPE's pairs (i, i + head_size / 2) into (2i, 2i + 1).

    Row j of a head in the GGUF is row j / 2 of the checkpoint for even j, and row
    (j - 1) / 2 + head_size / 2 for odd j. The `n_between` rows after each head (gates) keep their
    order. int `[n_head * (head_size + n_between)]`.
    """
    pairs = np.arange(head_size).reshape(2, head_size // 2).T.ravel()
    head = np.concatenate([pairs, head_size + np.arange(n_between)])
    starts = np.arange(n_head) * (head_size + n_between)
    rows: Rows = (starts[:, None] + head).ravel().astype(np.intp)
    return rows
