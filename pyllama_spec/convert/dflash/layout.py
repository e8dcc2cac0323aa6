"""The tensors of a DFlash checkpoint -> those of the GGUF, each used exactly once.

docs/convert.md lists the GGUF's names and shapes. RoPE turns the halves of a head on both sides,
so that rows stay as they are, but for a checkpoint that says otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pyllama_spec.convert.checkpoint_tensors import CheckpointTensors, first_rows, mlp, plain
from pyllama_spec.convert.dflash.config import DflashConfig
from pyllama_spec.convert.dflash.heads import CONFIDENCE, SELECTOR, W1, W2, Heads, read_heads
from pyllama_spec.convert.embeddings import (
    Vocabulary,
    take_embedding,
    take_output,
    take_vocabulary,
)
from pyllama_spec.errors import ConversionError
from pyllama_spec.gguf.tensors import PlannedTensor, Rows, SourceTensor

# Pattern of a checkpoint's name -> the name that most of them have.
_NAMES = (
    (re.compile(r"^model\."), ""),
    (re.compile(r"^encoder\.fc\."), "fc."),
    (re.compile(r"^encoder\.output_norm_enc\."), "hidden_norm."),
    (re.compile(r"^confidence_proj\."), "confidence_head.proj."),
    (re.compile(r"^(candidate_selector\.\w+_codebook)\.weight$"), r"\1"),
    (re.compile(r"\.self_attn\.(attention_sink_bias|sinks)(\.weight)?$"), ".self_attn.sinks"),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """The planned tensors, and the facts of the draft that they tell.

    Attributes:
        tensors: the tensors in the GGUF's order, without token_embd and output.
        embedding, output: the draft's own; None if it has none.
        heads: the heads after the layers.
        vocabulary: the vocabulary of the output.
        notes: remarks for the user.
    """

    tensors: tuple[PlannedTensor, ...]
    embedding: SourceTensor | None
    output: PlannedTensor | None
    heads: Heads
    vocabulary: Vocabulary
    notes: tuple[str, ...]


def common_name(name: str) -> str:
    """The name that most checkpoints use."""
    for pattern, instead in _NAMES:
        name = pattern.sub(instead, name)
    return name


def half_rows(n_head: int, head_size: int) -> Rows:
    """The row order that turns RoPE's neighbours (2i, 2i + 1) into (i, i + head_size / 2).

    int `[n_head * head_size]`.
    """
    head = np.arange(head_size).reshape(head_size // 2, 2).T.ravel()
    rows: Rows = (np.arange(n_head)[:, None] * head_size + head).ravel().astype(np.intp)
    return rows


def plan_tensors(
    config: DflashConfig,
    source_tensors: Mapping[str, SourceTensor],
    *,
    n_target_layers: int,
    n_vocab: int,
) -> Plan:
    """Maps each tensor of the GGUF to its source."""
    tensors = CheckpointTensors(source_tensors, common_name)
    tensors.check_layers(config.n_layer)
    heads = read_heads(config.options, tensors, config.is_speculators, config.n_embd)
    n_embd = config.n_embd
    planned = [
        plain("fc.weight", tensors.take("fc.weight", n_embd, n_target_layers * n_embd)),
        plain("enc.output_norm.weight", tensors.take("hidden_norm.weight", n_embd)),
        plain("output_norm.weight", tensors.take("norm.weight", n_embd)),
    ]
    vocabulary = take_vocabulary(tensors, config.n_draft_vocab, config, n_vocab)
    notes = [*vocabulary.notes, *heads.notes]
    embedding = None
    if tensors.find("embed_tokens.weight") is not None:
        embedding = take_embedding(tensors, config, notes, n_vocab)
    output = take_output(tensors, config, vocabulary, notes)
    if output is None and not vocabulary.is_whole:
        raise ConversionError(
            "the tensor lm_head.weight is missing: the draft has a vocabulary of its own, and the "
            "target's output has another"
        )
    planned += vocabulary.tensors + _heads(config, heads, tensors, vocabulary)
    for index in range(config.n_layer):
        planned += _layer(config, heads, tensors, index)
    tensors.check_empty()
    planned += [PlannedTensor(n, v.shape, values=v) for n, v in config.rope.tensors.items()]
    return Plan(tuple(planned), embedding, output, heads, vocabulary, tuple(notes))


def _heads(
    config: DflashConfig, heads: Heads, tensors: CheckpointTensors, vocabulary: Vocabulary
) -> list[PlannedTensor]:
    """Plans the Markov and confidence heads or the selector, with a row per target token."""
    n_vocab, n_embd, planned = vocabulary.n_target, config.n_embd, list[PlannedTensor]()

    def table(name: str, source: str, n: int, n_rows: int, rank: int) -> None:
        if n < n_rows:
            raise ConversionError(
                f"{source} has {n} rows, fewer than the target's {n_rows} tokens; is this the "
                "target that the draft was made for?"
            )
        planned.append(first_rows(name, tensors.take(source, n, rank), n_rows))

    if (rank := heads.markov_rank) is not None:
        table("markov_w1.weight", W1, config.n_vocab, n_vocab, rank)
        table("markov_w2.weight", W2, vocabulary.n_output, vocabulary.n_rows, rank)
        if heads.has_confidence:
            planned.append(plain("conf_proj.weight", tensors.take(CONFIDENCE, 1, n_embd + rank)))
            bias = CONFIDENCE.replace("weight", "bias")
            if tensors.find(bias) is not None:
                planned.append(plain("conf_proj.bias", tensors.take(bias, 1)))
    if heads.selector:
        rank = heads.selector["selector_rank"]
        planned.append(plain("selector_hidden.weight", tensors.take(SELECTOR, rank, n_embd)))
        for part in ("predecessor", "successor"):
            source = f"candidate_selector.{part}_codebook"
            table(f"selector_{part}.weight", source, config.n_vocab, n_vocab, rank)
    return planned


def _layer(
    config: DflashConfig, heads: Heads, tensors: CheckpointTensors, index: int
) -> list[PlannedTensor]:
    """Plans one decoder layer."""
    blk, src, n_embd = f"blk.{index}.", f"layers.{index}.", config.n_embd
    norms = (("attn_norm", "input_layernorm"), ("ffn_norm", "post_attention_layernorm"))
    planned = [
        plain(f"{blk}{name}.weight", tensors.take(f"{src}{source}.weight", n_embd))
        for name, source in norms
    ]
    planned += _attention(config, tensors, index) + mlp(config, tensors, index)
    if heads.selector:
        kernel = heads.selector["conv_kernel_size"]
        n_out = 2 * kernel * (n_embd // heads.selector["conv_group_size"])
        for name, source in (("attn", "attention"), ("ffn", "mlp")):
            base = tensors.take(f"{src}{source}_conv.base_kernel", 2, kernel, n_embd)
            weight = tensors.take(f"{src}{source}_conv.kernel_projection.weight", n_out, n_embd)
            planned.append(plain(f"{blk}{name}_conv_base", base))
            planned.append(plain(f"{blk}{name}_conv_proj.weight", weight))
    return planned


def _attention(config: DflashConfig, tensors: CheckpointTensors, index: int) -> list[PlannedTensor]:
    blk, src = f"blk.{index}.", f"layers.{index}.self_attn."
    size, n_embd = config.head_size, config.n_embd
    n_q, n_kv = config.n_head * size, config.n_head_kv * size
    parts = (
        ("q_proj", "attn_q", (n_q, n_embd), config.n_head),
        ("k_proj", "attn_k", (n_kv, n_embd), config.n_head_kv),
        ("v_proj", "attn_v", (n_kv, n_embd), 0),
        ("o_proj", "attn_output", (n_embd, n_q), 0),
        ("q_norm", "attn_q_norm", (size,), 1),
        ("k_norm", "attn_k_norm", (size,), 1),
    )
    planned = []
    for part, name, shape, n_turned in parts:
        rows = half_rows(n_turned, size) if n_turned and config.is_interleaved else None
        planned.append(
            plain(f"{blk}{name}.weight", tensors.take(f"{src}{part}.weight", *shape), rows)
        )
        source = f"{src}{part}.bias"
        is_needed = config.has_bias and part != "o_proj"
        if part.endswith("_proj") and (is_needed or tensors.find(source) is not None):
            bias = half_rows(n_turned, size) if n_turned and config.is_interleaved else None
            planned.append(plain(f"{blk}{name}.bias", tensors.take(source, shape[0]), bias))
    if config.has_sinks:
        sinks = tensors.take(f"{src}sinks", config.n_head)
        planned.append(plain(f"{blk}attn_sinks.weight", sinks))
    return planned
