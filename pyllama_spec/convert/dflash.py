"""DFlash, DFlash2 and DSpark drafts of z-lab, SpecForge, DeepSpec and speculators / RedHat.

docs/convert.md lists the GGUF's names and shapes. RoPE turns the halves of a head on both sides,
so that rows stay as they are.

The injected rows come before every slot. Within the block a layer is causal or not:

    is_causal, or dflash_config.causal          that, in every layer
    speculators: sliding_window_non_causal      sliding layers are not causal where it is true
    none of them                                sliding layers are causal, full ones are not

The last line is how z-lab, vLLM, SGLang and SpecForge read it; SGLang measured 5.6 accepted tokens
for z-lab's gemma-4-31B draft with it and 5.3 without (sgl-project/sglang pull request 34524). The
engine has one mask for all layers, so a draft with both kinds of layers is computed without
causality, and its file says which layers want it.

A draft that samples from its anchor predicts in slot i what follows slot i; the others predict in
slot i > 0 what belongs into slot i, and nothing in slot 0. One off is invisible but in acceptance.

    DeepSpec, SpecForge with a Markov head     from the anchor, unless sample_from_anchor says else
    DeepSpec without a Markov head             from the anchor too
    z-lab, SpecForge without one               not from the anchor
    speculators                                sample_from_anchor; without the key DFlash does not,
                                               and of DSpark both exist (ggml-org/llama.cpp pull
                                               request 26275, sgl-project/sglang 30982)
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyllama_spec.convert.config import Fields, Sizes, body_of, check_supported, read_sizes
from pyllama_spec.convert.draft import Draft, Source, sizes_of
from pyllama_spec.convert.layer_ids import Convention, Ids, to_inputs
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
from pyllama_spec.convert.target_matrices import with_own_matrices
from pyllama_spec.convert.vocabulary import Vocabulary, take_vocabulary
from pyllama_spec.errors import ConversionError
from pyllama_spec.gguf.reader import GgufKey
from pyllama_spec.gguf.target import Target

KINDS = ("dflash", "dflash2", "dspark")
_MARKOV, _CONFIDENCE = "markov_head.markov_w1.weight", "confidence_head.proj.weight"
_SELECTOR = "candidate_selector.hidden_projection.weight"
_TABLE = Table(
    outer=(
        Row("token_embd.weight", "embed_tokens.weight", "n_trained n_embd", "maybe",
            n_rows="n_vocab"),
        Row("output.weight", "lm_head.weight", "n_output n_embd", "output", n_rows="n_rows"),
        Row("fc.weight", "fc.weight", "n_embd n_features"),
        Row("enc.output_norm.weight", "hidden_norm.weight", "n_embd"),
        Row("output_norm.weight", "norm.weight", "n_embd"),
        Row("d2t", "d2t", "n_output", "never"),
        Row("markov_w1.weight", _MARKOV, "n_trained n_rank", "markov", n_rows="n_vocab"),
        Row("markov_w2.weight", "markov_head.markov_w2.weight", "n_output n_rank", "markov",
            n_rows="n_rows"),
        Row("conf_proj.weight", _CONFIDENCE, "1 n_confidence", "confidence"),
        Row("conf_proj.bias", "confidence_head.proj.bias", "1", "confidence_bias"),
        Row("selector_hidden.weight", _SELECTOR, "n_selector n_embd", "selector"),
        Row("selector_predecessor.weight", "candidate_selector.predecessor_codebook",
            "n_trained n_selector", "selector", n_rows="n_vocab"),
        Row("selector_successor.weight", "candidate_selector.successor_codebook",
            "n_trained n_selector", "selector", n_rows="n_vocab"),
    ),
    layer=(
        Row("attn_norm.weight", "input_layernorm.weight", "n_embd"),
        Row("ffn_norm.weight", "post_attention_layernorm.weight", "n_embd"),
        *ATTENTION,
        Row("attn_sinks.weight", "self_attn.sinks", "n_head", "sinks"),
        *MLP,
        Row("attn_conv_base", "attention_conv.base_kernel", "2 n_kernel n_embd", "selector"),
        Row("attn_conv_proj.weight", "attention_conv.kernel_projection.weight",
            "n_kernels n_embd", "selector"),
        Row("ffn_conv_base", "mlp_conv.base_kernel", "2 n_kernel n_embd", "selector"),
        Row("ffn_conv_proj.weight", "mlp_conv.kernel_projection.weight", "n_kernels n_embd",
            "selector"),
    ),
)  # fmt: skip

# z-lab's files have some options in dflash_config and some at the top, SpecForge's likewise,
# RadixArk's have a dspark_config as well, DeepSpec's have all at the top, and speculators' have the
# draft's at the top and the decoder's in transformer_layer_config.
_INNER = ("dflash_config", "dspark_config")
# Options that are read here.
_READ = {
    "attention_mode", "attention_sink_bias", "attention_value_scale", "block_size", "causal",
    "confidence_head_with_markov", "conv_group_size", "conv_kernel_size", "enable_confidence_head",
    "final_logit_softcapping", "input_embedding_scale", "markov_head_type", "markov_rank",
    "mask_token_id", "num_target_layers", "output_multiplier", "projector_type",
    "sample_from_anchor", "selector_rank", "selector_top_k", "selector_vocab_size",
    "swa_window_size", "target_layer_ids", "use_aux_hidden_state", "use_qk_norm", "use_swa",
}  # fmt: skip
# Options for training, the target or readers that change no layer of the draft.
_IGNORED = {
    "backbone_rotary_base", "confidence_head_alpha", "loss_decay_gamma", "mask_token",
    "num_anchors",
}  # fmt: skip
_TOP_OF_SPECULATORS = {
    "architectures", "auto_map", "aux_hidden_state_layer_ids", "draft_vocab_size", "dtype",
    "layer_types", "max_anchors", "max_window_layers", "model_type", "sliding_window",
    "sliding_window_non_causal", "speculators_config", "speculators_model_type",
    "speculators_version", "target_hidden_size", "tie_word_embeddings", "torch_dtype",
    "transformer_layer_config", "transformers_version", "use_sliding_window",
}  # fmt: skip
# At the top of a flat config.json, between hundreds of keys of transformers, what belongs to a
# draft is recognised by its name.
_DRAFTS_OWN = re.compile(
    r"^(anchor|block|candidate|confidence|conv|dflash|dfly|domino|draft|dspark|fc|gating|hidden"
    r"_correction|markov|mask|modality|projector|sample_from|selector|target_layer)(_|$)"
)
_FLAT = {"draft_vocab_size", "markov_head_type", *_INNER}
_OWN_TENSORS = re.compile(
    r"^(model\.)?(hidden_norm\.|encoder\.output_norm_enc\.|markov_head\.|candidate_selector\.)"
    r"|^mtp\.\d+\.main_proj\."
)
# The engine computes GELU by its tanh formula.
_ACTIVATIONS = ("silu", "gelu_pytorch_tanh")
_NEOX = "RoPE has to turn the halves of a head"
_SUPPORTED = (
    ("speculators_model_type", KINDS, "this kind of draft is not supported"),
    ("attn_output_gate", (False,), "the engine's DFlash graph has no gate"),
    ("projector_type", KINDS, "this kind of draft is not supported"),
    ("use_qk_norm", (True,), "the engine's DFlash graph norms queries and keys"),
    ("use_aux_hidden_state", (True,), "the draft does not read the target's rows"),
    ("markov_head_type", ("vanilla",), "the engine has 'vanilla' alone"),
    ("rope_is_neox_style", (True,), _NEOX),
    ("is_neox_style", (True,), _NEOX),
)
# The GGUF's keys of numbers, and the options that they come from; a factor of 1 is left out.
_NUMBERS = {
    "embedding_scale": "input_embedding_scale",
    "logit_scale": "output_multiplier",
    "final_logit_softcapping": "final_logit_softcapping",
    "attention.value_scale": "attention_value_scale",
}
_SELECTOR_KEYS = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
# The tokens of a block have one position each, whatever pictures the target gives three.
_MROPE = frozenset({"mrope_section", "mrope_interleaved"})
_FULL, _SLIDING = "full_attention", "sliding_attention"
# The model type with its own code, which has no use_sliding_window.
_MUSE = "muse_glimmer_assistant"
_MAX_BLOCK = 256
# LLAMA_SPEC_DFLASH_MAX_CHAIN of csrc: each slot's choice is a part of the graph.
_MAX_CHAIN = 32
_UINT32 = 4


def is_dflash(config: Mapping[str, Any], names: Mapping[str, object]) -> bool:
    """Whether a checkpoint is a DFlash draft, by its options or by keys that EAGLE-3 never has.

    EAGLE-3 heads norm the target's rows in their first layer, and not before all of them.
    """
    if config.get("speculators_model_type") in KINDS:
        return True
    return any(config.get(key) for key in _INNER) or any(_OWN_TENSORS.search(n) for n in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A draft as its config.json describes it, without the heads after its layers."""

    sizes: Sizes
    options: Fields
    is_speculators: bool
    block_size: int
    mask_token: int
    layer_ids: Ids  # as written in the file
    counted: Convention
    mask_keys: Mapping[str, Any]  # of the GGUF, without the architecture's prefix
    activation: str
    numbers: Mapping[str, float]  # by the keys of _NUMBERS; 1 is for none
    rope: Rope
    has_bias: bool
    has_sinks: bool
    notes: tuple[str, ...]


def read_config(config: Mapping[str, Any]) -> Config:
    """Reads the config. Raises where a value that decides the block is missing."""
    top = Fields(config)
    body = body_of(top)
    is_speculators = body is not top
    options = _options(top, body, is_speculators)
    check_supported(options, _SUPPORTED)
    if body.has("v_head_dim") and body.get("v_head_dim") != body.get("head_dim"):
        raise body.refuse("v_head_dim", "values of another size than head_dim are not supported")
    if options.get("selector_vocab_size") not in (None, body.get("vocab_size")):
        raise options.refuse("selector_vocab_size", "a selector of other tokens is not supported")
    sizes = read_sizes(top, body)
    block_size, mask_token = options.size("block_size"), options.get("mask_token_id")
    if block_size > _MAX_BLOCK:
        raise options.refuse("block_size", f"a block has up to {_MAX_BLOCK} slots")
    if type(mask_token) is not int or mask_token < 0:
        raise options.fail("mask_token_id", "the id of a token")
    ids, counted = _layer_ids(options, top)
    rope = _rope(body, sizes.head_size, is_speculators)
    mask_keys, notes = _masks(options, sizes.n_layer, is_speculators)
    activation_key = "hidden_activation" if body.has("hidden_activation") else "hidden_act"
    activation = body.get(activation_key) or "silu"
    if activation not in _ACTIVATIONS:
        raise body.fail(activation_key, f"one of {', '.join(_ACTIVATIONS)}")
    # z-lab's code takes a cap of 0 for none.
    numbers = {
        name: options.number(key, 1.0) if options.get(key) != 0 or name != key else 1.0
        for name, key in _NUMBERS.items()
    }
    return Config(
        sizes=sizes,
        options=options,
        is_speculators=is_speculators,
        block_size=block_size,
        mask_token=mask_token,
        layer_ids=ids,
        counted=counted,
        mask_keys=mask_keys,
        activation=activation,
        numbers=numbers,
        rope=rope,
        has_bias=body.flag("attention_bias"),
        has_sinks=options.flag("attention_sink_bias", body.flag("add_swa_attention_sink_bias")),
        notes=(*rope.notes, *notes),
    )


def _options(top: Fields, body: Fields, is_speculators: bool) -> Fields:
    """The options, wherever they are; raises for an unknown one that is on."""
    inner = [fields for key in _INNER if (fields := top.inner(key)).values]
    known = _READ | _IGNORED
    of_top = {
        key: value for key, value in top.values.items() if is_speculators or _DRAFTS_OWN.match(key)
    }
    known_at_top = known | (_TOP_OF_SPECULATORS if is_speculators else _FLAT)
    places: list[tuple[Fields, set[str]]] = [(one, known) for one in inner]
    for place, names in (*places, (Fields(of_top), known_at_top)):
        for key in sorted(place.values.keys() - names):
            if place.values[key] in (None, False, "", [], {}) or key.startswith("_"):
                continue
            raise place.refuse(key, "this converter does not know its meaning")
    all_places = [*inner, top, body] if is_speculators else [*inner, top]
    return all_places[0].beside(*all_places[1:])


def _layer_ids(options: Fields, top: Fields) -> tuple[Ids, Convention]:
    """The layer ids and what they count, which the key's name tells in all published files."""
    outputs, inputs = options.ids("target_layer_ids"), top.ids("aux_hidden_state_layer_ids")
    if outputs and inputs and inputs != tuple(k + 1 for k in outputs):
        raise ConversionError(
            f"config.json: aux_hidden_state_layer_ids {list(inputs)}, which count inputs, and "
            f"target_layer_ids {list(outputs)}, which count outputs, do not name the same layers"
        )
    if inputs:
        return inputs, "input"
    if not outputs:
        raise ConversionError(
            "config.json names no layers of the target: there is neither target_layer_ids nor "
            "aux_hidden_state_layer_ids"
        )
    return outputs, "output"


def _rope(body: Fields, head_size: int, is_speculators: bool) -> Rope:
    # Readers of speculators' files disagree whether the share, left from the target, applies.
    rope = read_rope(body, head_size, ignored=_MROPE, partial=not is_speculators)
    scaling = body.inner("rope_scaling").beside(body.inner("rope_parameters"))
    if not (body.has("rope_theta") or scaling.has("rope_theta")):
        # transformers takes 10000, vLLM a million.
        raise body.fail("rope_theta", "readers of this kind of draft take different defaults")
    by_mscale = scaling.has("mscale") and not scaling.has("attention_factor")
    if by_mscale and "rope.scaling.attn_factor" in rope.keys:
        # z-lab/Kimi-K2.5-DFlash: transformers computes with mscale, vLLM and stock without.
        why = (
            "it changes how cos and sin are scaled, and readers of this kind of draft disagree "
            "whether it counts; write attention_factor beside it"
        )
        raise scaling.refuse("mscale", why)
    return rope


def _masks(
    options: Fields, n_layer: int, is_speculators: bool
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The GGUF's keys of the attention masks, and remarks for the user."""
    by_type = [kind == _SLIDING for kind in _layer_types(options, n_layer)]
    use_window = options.optional_flag("use_sliding_window")
    use_swa, is_muse = options.flag("use_swa"), options.get("model_type") == _MUSE
    if any(by_type) and not (use_window or use_swa or is_muse):
        raise options.refuse(
            "use_sliding_window",
            "layer_types has sliding_attention, and readers disagree on what a window is then; "
            "say true or false for both in config.json",
        )
    if use_window and not any(by_type) and not use_swa and not options.has("layer_types"):
        raise options.refuse("use_sliding_window", "layer_types does not say in which layers")
    is_sliding = [True] * n_layer if use_swa and not any(by_type) else by_type
    is_causal = _causal(options, by_type, is_speculators)
    keys: dict[str, Any] = {"attention.causal": all(is_causal)}
    if any(is_sliding):
        key = "swa_window_size" if options.has("swa_window_size") else "sliding_window"
        keys["attention.sliding_window"] = options.size(key)
        keys["attention.sliding_window_pattern"] = tuple(is_sliding)
    if len(set(is_causal)) == 1:
        return keys, ()
    keys["attention.causal_pattern"] = tuple(is_causal)
    note = (
        f"{sum(is_causal)} of {n_layer} layers are causal within a block; stock llama.cpp reads "
        "the file as if none were, which costs some acceptance there"
    )
    return keys, (note,)


def _layer_types(options: Fields, n_layer: int) -> list[str]:
    kinds = options.get("layer_types")
    if kinds is None:
        return [_FULL] * n_layer
    if not isinstance(kinds, list) or len(kinds) != n_layer:
        raise options.fail("layer_types", f"a list of {n_layer} kinds, one per layer")
    if odd := sorted({str(kind) for kind in kinds} - {_FULL, _SLIDING}):
        raise options.refuse("layer_types", f"{odd[0]!r} is not supported")
    return kinds


def _causal(options: Fields, by_type: list[bool], is_speculators: bool) -> list[bool]:
    declared = [options.optional_flag(key) for key in ("is_causal", "causal")]
    known = {value for value in declared if value is not None}
    if len(known) > 1:
        raise options.refuse("is_causal", f"causal is {declared[1]}")
    if known:
        return [known.pop()] * len(by_type)
    if is_speculators and options.flag("sliding_window_non_causal"):
        return [False] * len(by_type)
    return by_type


@dataclass(frozen=True, slots=True)
class Heads:
    """The optional heads after a draft's layers."""

    markov_rank: int  # the rank of DSpark's Markov head; 0 without one
    has_confidence: bool  # whether there is a confidence head
    sample_from_anchor: bool  # whether slot 0 predicts
    selector: dict[str, int]  # the options of DFlash2's selector; empty if there is none

    @property
    def name(self) -> str:
        """The kind of draft."""
        if self.selector:
            return "DFlash2"
        return "DSpark" if self.markov_rank else "DFlash"

    @property
    def keys(self) -> dict[str, Any]:
        """The GGUF's keys, without the architecture in front."""
        anchor = {"sample_from_anchor": self.sample_from_anchor}
        if self.markov_rank:
            return {**anchor, "has_confidence_head": self.has_confidence}
        return {**self.selector, **(anchor if self.sample_from_anchor else {})}


def read_heads(config: Config, tensors: CheckpointTensors, notes: list[str]) -> Heads:
    """Reads the heads from config.json and the tensors, which must agree."""
    options, selector = config.options, _selector(config, tensors)
    rank, has_markov = options.get("markov_rank"), tensors.find(_MARKOV) is not None
    is_deepspec = rank is not None
    if has_markov and not rank:
        raise options.fail("markov_rank", f"the rank of {_MARKOV}")
    rank = options.size("markov_rank") if rank not in (None, 0) else 0
    if selector and rank:
        raise ConversionError(
            "the draft has a selector and a Markov head, and the engine computes only one of them"
        )
    has_confidence = _confidence(options, tensors, rank, notes)
    anchor = options.optional_flag("sample_from_anchor")
    if anchor is None and rank and config.is_speculators:
        raise ConversionError(
            "config.json has no sample_from_anchor: DSpark drafts of this layout exist with and "
            "without, and one read as the other is hardly ever accepted; write true or false into "
            "it (the model card knows; files of before July 2026 are false)"
        )
    if anchor is None:
        # DeepSpec's DFlash drafts have markov_rank 0, and are trained like its DSpark drafts.
        anchor = is_deepspec
    heads = Heads(rank, has_confidence, anchor, selector)
    _check_block(config, heads)
    return heads


def _selector(config: Config, tensors: CheckpointTensors) -> dict[str, int]:
    options, n_embd = config.options, config.sizes.n_embd
    if tensors.find(_SELECTOR) is None:
        if key := next((key for key in _SELECTOR_KEYS if options.has(key)), None):
            raise options.refuse(key, f"the tensor {_SELECTOR} is missing")
        return {}
    sizes = {key: options.size(key) for key in _SELECTOR_KEYS}
    if n_embd % sizes["conv_group_size"]:
        raise options.refuse("conv_group_size", f"hidden_size {n_embd} is not a multiple of it")
    if n_embd < sizes["selector_top_k"] * (sizes["selector_top_k"] + 1):
        raise options.refuse(
            "selector_top_k", f"its scores do not fit into a row of {n_embd} numbers"
        )
    return sizes


def _confidence(options: Fields, tensors: CheckpointTensors, rank: int, notes: list[str]) -> bool:
    is_asked = options.optional_flag("enable_confidence_head")
    if tensors.find(_CONFIDENCE) is None:
        if is_asked:
            notes.append("enable_confidence_head is true, and the file has no confidence head")
        return False
    if is_asked is False:
        raise options.refuse("enable_confidence_head", f"there is {_CONFIDENCE}")
    if not rank:
        raise ConversionError(
            f"there is {_CONFIDENCE}, but no Markov head: the engine computes it only after one"
        )
    if options.optional_flag("confidence_head_with_markov") is False:
        raise options.refuse(
            "confidence_head_with_markov",
            "the engine's confidence head reads the previous token as well",
        )
    return True


def _check_block(config: Config, heads: Heads) -> None:
    """Refuses block sizes and logits for which the heads would compute wrong results."""
    least, options = 1 if heads.sample_from_anchor else 2, config.options
    if config.block_size < least:
        raise options.refuse("block_size", f"a block that drafts has {least} slots or more")
    if heads.markov_rank and config.block_size > _MAX_CHAIN:
        raise options.refuse(
            "block_size", f"with a Markov head the engine takes {_MAX_CHAIN} slots at most"
        )
    if heads.markov_rank and config.numbers["logit_scale"] != 1:
        # vLLM scales what the head adds as well; other readers do not document it.
        raise options.refuse(
            "output_multiplier", "readers disagree how a Markov head adds to such logits"
        )


def make_dflash(source: Source) -> Draft:
    """Plans the conversion of a draft."""
    config = read_config(source.checkpoint.config)
    tensors, target, sizes = source.tensors, source.target, config.sizes
    _check_target(config, target)
    n_wanted = sizes.count_target_layers(tensors.matrix("fc.weight"), target)
    ids = to_inputs(
        config.layer_ids, source.layer_ids or config.counted, target.n_layer, n_wanted, -1
    )
    tensors.check_layers(sizes.n_layer)
    notes = list(config.notes)
    heads = read_heads(config, tensors, notes)
    vocabulary = take_vocabulary(tensors, sizes, target.n_vocab)
    notes += vocabulary.notes
    if sizes.is_tied and vocabulary.is_whole:
        tensors.share("lm_head.weight", "embed_tokens.weight")
    facts = _facts(config, heads, vocabulary, n_wanted)
    planned = plan_tensors(_TABLE, tensors, [facts] * sizes.n_layer, notes)
    keys = _keys(config, heads, target, notes)
    tensors_written = with_own_matrices(planned, source, notes)
    if target.n_layer in ids.target_layers:
        notes.append(
            "the row that leaves the target's last block is taken before the final norm, as vLLM "
            "and SGLang do; transformers hands it out after"
        )
    return Draft(
        arch="dflash",
        name=heads.name,
        keys=keys,
        ids=ids,
        tensors=(*tensors_written, *config.rope.planned),
        n_layer=sizes.n_layer,
        n_draft_vocab=vocabulary.n_reduced,
        block_size=config.block_size,
        tokenizer={"tokenizer.ggml.mask_token_id": GgufKey(_UINT32, None, config.mask_token)},
        notes=tuple(notes),
    )


def _check_target(config: Config, target: Target) -> None:
    if config.sizes.n_embd != target.n_embd:
        raise ConversionError(
            f"the draft is {config.sizes.n_embd} wide and the target {target.n_embd}; a DFlash "
            "draft is as wide as its target"
        )
    n_layer = config.options.optional_size("num_target_layers")
    if n_layer not in (None, target.n_layer):
        raise ConversionError(
            f"the draft was made for a target of {n_layer} layers (num_target_layers), this one "
            f"has {target.n_layer}"
        )
    if config.mask_token >= target.n_vocab:
        raise ConversionError(
            f"config.json: mask_token_id is {config.mask_token}, and the target has "
            f"{target.n_vocab} tokens"
        )


def _facts(config: Config, heads: Heads, vocabulary: Vocabulary, n_target_layers: int) -> Facts:
    sizes, selector = config.sizes, heads.selector
    n_kernel = selector.get("conv_kernel_size", 0)
    n_groups = sizes.n_embd // selector.get("conv_group_size", 1)
    output = "the draft has a vocabulary of its own, and the target's output has another"
    return Facts(
        sizes={
            **sizes_of(sizes, vocabulary, n_target_layers, sizes.n_embd),
            "n_q_gated": sizes.n_head * sizes.head_size,
            "n_in": sizes.n_embd,
            "n_rank": heads.markov_rank,
            "n_confidence": sizes.n_embd + heads.markov_rank,
            "n_selector": selector.get("selector_rank", 0),
            "n_kernel": n_kernel,
            "n_kernels": 2 * n_kernel * n_groups,
        },
        needs={
            "maybe": None,
            "never": False,
            "output": None if vocabulary.is_whole else output,
            "markov": bool(heads.markov_rank),
            "confidence": heads.has_confidence,
            "confidence_bias": None if heads.has_confidence else False,
            "selector": bool(selector),
            "bias": True if config.has_bias else None,
            "o_bias": None,
            "qk_norm": True,
            "sinks": config.has_sinks,
        },
        made=vocabulary.tensors,
    )


def _keys(config: Config, heads: Heads, target: Target, notes: list[str]) -> dict[str, Any]:
    keys: dict[str, Any] = {
        **config.sizes.keys(),
        "block_count": config.sizes.n_layer,
        **config.rope.keys,
        "block_size": config.block_size,
        **config.mask_keys,
        **heads.keys,
    }
    if target.has_mrope:
        if config.rope.tensors:
            raise ConversionError(
                "RoPE scaling of kind 'llama3' is not supported for a target with M-RoPE"
            )
        keys["rope.dimension_sections"] = (keys["rope.dimension_count"] // 2, 0, 0, 0)
    if config.activation != "silu":
        keys["hidden_activation"] = config.activation
    numbers = dict(config.numbers)
    if target.arch.startswith("gemma") and not config.options.has("input_embedding_scale"):
        # Gemma's embedding is scaled by the root of its width, and drafts that borrow it are
        # trained with that (vllm-project/vllm pull request 41703); speculators trains with a plain
        # copy of the table.
        if config.is_speculators:
            notes.append("Gemma's embedding is not scaled for the draft, as speculators trains it")
        else:
            numbers["embedding_scale"] = math.sqrt(target.n_embd)
    return keys | {name: number for name, number in numbers.items() if number != 1}
