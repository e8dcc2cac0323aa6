"""Maps the tensors of a checkpoint to those of the GGUF; each is used once.

docs/eagle3.md lists the GGUF's names and shapes. Names of checkpoints differ in three things: an
optional "model." in front, "midlayer." for "layers.0.", and what norms before fc are called.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pyllama_spec.convert.checkpoint_tensors import CheckpointTensors, first_rows, mlp, plain
from pyllama_spec.convert.eagle3.config import DraftConfig
from pyllama_spec.convert.embeddings import (
    Vocabulary,
    take_embedding,
    take_output,
    take_vocabulary,
)
from pyllama_spec.errors import ConversionError
from pyllama_spec.gguf.tensors import PlannedTensor, Rows, SourceTensor


@dataclass(frozen=True, slots=True)
class Plan:
    """The planned tensors, and the facts of the head that they tell.

    Attributes:
        tensors: the tensors in the GGUF's order.
        n_layer: decoder layers.
        n_draft_vocab: rows of the reduced output; None for the whole vocabulary.
        notes: remarks for the user.
    """

    tensors: tuple[PlannedTensor, ...]
    n_layer: int
    n_draft_vocab: int | None
    notes: tuple[str, ...]


def common_name(name: str) -> str:
    """The common name: model.midlayer.x becomes layers.0.x; others lose "model."."""
    name = name.removeprefix("model.")
    return f"layers.0.{name[9:]}" if name.startswith("midlayer.") else name


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


def plan_tensors(
    config: DraftConfig,
    source_tensors: Mapping[str, SourceTensor],
    *,
    n_target_layers: int,
    target_n_embd: int,
    n_vocab: int,
) -> Plan:
    """Maps each tensor of the GGUF to its source."""
    tensors = CheckpointTensors(source_tensors, common_name)
    has_midlayer = any(re.match(r"(model\.)?midlayer\.", name) for name in source_tensors)
    n_layer, notes = _count_layers(config, tensors, has_midlayer)
    planned = _features(config, tensors, n_target_layers, target_n_embd)
    vocabulary = take_vocabulary(tensors, config.n_draft_vocab, config, n_vocab)
    embeddings, embedding_notes = _embeddings(
        config, tensors, vocabulary, config.n_embd == target_n_embd
    )
    planned += embeddings
    for index in range(n_layer):
        planned += _layer(config, tensors, index)
    tensors.check_empty()
    planned += [PlannedTensor(n, v.shape, values=v) for n, v in config.rope.tensors.items()]
    notes += [*vocabulary.notes, *embedding_notes]
    return Plan(tuple(planned), n_layer, vocabulary.n_reduced, tuple(notes))


def _count_layers(
    config: DraftConfig, tensors: CheckpointTensors, has_midlayer: bool
) -> tuple[int, list[str]]:
    if has_midlayer and tensors.layers() == {0}:
        if config.n_layer == 1:
            return 1, []
        # yuhuili/EAGLE3-Vicuna1.3-13B: the number is the target's.
        return 1, [f"one layer, though config.json says num_hidden_layers {config.n_layer}"]
    tensors.check_layers(config.n_layer)
    return config.n_layer, []


def _features(
    config: DraftConfig, tensors: CheckpointTensors, n_layers: int, width: int
) -> list[PlannedTensor]:
    """Plans fc and the norms before it."""
    for option, name, is_on in (
        ("norm_before_fc", "input_norm.weight", config.norm_before_fc),
        ("fc_norm", "fc_norm.0.weight", config.fc_norm),
    ):
        tensor = tensors.find(name)
        if tensor is not None and not is_on:
            raise ConversionError(
                f"there is {tensor.name}, but config.json does not say {option}: true"
            )
    planned = [plain("fc.weight", tensors.take("fc.weight", config.n_embd, n_layers * width))]
    if tensors.find("fc.bias") is not None:
        planned.append(plain("fc.bias", tensors.take("fc.bias", config.n_embd)))
    if config.norm_before_fc:
        source = tensors.take("input_norm.weight", n_layers * width)
        planned.append(plain("enc.output_norm.weight", source))
    for index in range(n_layers if config.fc_norm else 0):
        source = tensors.take(f"fc_norm.{index}.weight", width)
        planned.append(plain(f"enc.output_norm.{index}.weight", source))
    return planned


def _embeddings(
    config: DraftConfig, tensors: CheckpointTensors, vocabulary: Vocabulary, can_share: bool
) -> tuple[list[PlannedTensor], list[str]]:
    """Plans token embedding, output, output norm and d2t."""
    planned = [plain("output_norm.weight", tensors.take("norm.weight", config.n_embd))]
    notes: list[str] = []
    embedding = None
    if tensors.find("embed_tokens.weight") is not None:
        embedding = take_embedding(tensors, config, notes, vocabulary.n_target)
        planned.append(first_rows("token_embd.weight", embedding, vocabulary.n_target))
    elif not can_share:
        raise ConversionError(
            "the tensor embed_tokens.weight is missing, and the target's cannot be used: the head "
            f"is {config.n_embd} wide and the target is not"
        )
    output = take_output(tensors, config, vocabulary, notes)
    if output is not None:
        planned.append(output)
    else:
        planned += _shared_output(config, embedding, vocabulary, can_share)
    return planned + vocabulary.tensors, notes


def _shared_output(
    config: DraftConfig, embedding: SourceTensor | None, vocabulary: Vocabulary, can_share: bool
) -> list[PlannedTensor]:
    """The output of a head without its own: its tied embedding, or the target's output."""
    missing = "the tensor lm_head.weight is missing"
    if not vocabulary.is_whole:
        raise ConversionError(
            f"{missing}: the head has a vocabulary of its own, and the target's output has another"
        )
    if config.is_tied:
        if embedding is None:
            raise ConversionError(
                f"{missing}, as is embed_tokens.weight, to which tie_word_embeddings ties it"
            )
        return [first_rows("output.weight", embedding, vocabulary.n_target)]
    if not can_share:
        raise ConversionError(
            f"{missing}, and the target's cannot be used: the head is {config.n_embd} wide and the "
            "target is not"
        )
    return []


def _layer(config: DraftConfig, tensors: CheckpointTensors, index: int) -> list[PlannedTensor]:
    """Plans a decoder layer; the first one reads a token and a row side by side."""
    blk, src = f"blk.{index}.", f"layers.{index}."
    n_embd = config.n_embd
    planned = [
        plain(f"{blk}attn_norm.weight", tensors.take(f"{src}input_layernorm.weight", n_embd))
    ]
    if index == 0:
        source = tensors.take(f"{src}hidden_norm.weight", n_embd)
        planned.append(plain(f"{blk}attn_norm_2.weight", source))
    planned += _attention(config, tensors, index)
    source = tensors.take(f"{src}post_attention_layernorm.weight", n_embd)
    planned.append(plain(f"{blk}ffn_norm.weight", source))
    return planned + mlp(config, tensors, index)


def _attention(config: DraftConfig, tensors: CheckpointTensors, index: int) -> list[PlannedTensor]:
    blk, src = f"blk.{index}.", f"layers.{index}.self_attn."
    size, n_in = config.head_size, config.n_embd * (2 if index == 0 else 1)
    q_rows = neighbour_rows(config.n_head, size, size if config.output_gate else 0)
    k_rows = neighbour_rows(config.n_head_kv, size)
    n_kv = len(k_rows)
    parts: tuple[tuple[str, str, int, int, Rows | None], ...] = (
        ("q", "attn_q", len(q_rows), n_in, q_rows),
        ("k", "attn_k", n_kv, n_in, k_rows),
        ("v", "attn_v", n_kv, n_in, None),
        ("o", "attn_output", config.n_embd, config.n_head * size, None),
    )
    planned = []
    has_bias = _has_bias(config, tensors, src)
    for part, name, n_out, n_columns, rows in parts:
        weight = tensors.take(f"{src}{part}_proj.weight", n_out, n_columns)
        planned.append(plain(f"{blk}{name}.weight", weight, rows))
        if has_bias and (part != "o" or tensors.find(f"{src}o_proj.bias") is not None):
            bias = tensors.take(f"{src}{part}_proj.bias", n_out)
            planned.append(plain(f"{blk}{name}.bias", bias, rows))
    norms = [tensors.find(f"{src}{part}_norm.weight") for part in "qk"]
    if config.has_qk_norm or any(norms):
        for part in "qk":
            norm = tensors.take(f"{src}{part}_norm.weight", size)
            rows = neighbour_rows(1, size)
            planned.append(plain(f"{blk}attn_{part}_norm.weight", norm, rows))
    return planned


def _has_bias(config: DraftConfig, tensors: CheckpointTensors, src: str) -> bool:
    """Whether q, k and v have biases; that of o may be missing, as in Qwen2's attention."""
    biases = [t for part in "qkvo" if (t := tensors.find(f"{src}{part}_proj.bias")) is not None]
    if biases and config.has_attn_bias is False:
        raise ConversionError(
            f"there is {biases[0].name}, but config.json says attention_bias: false"
        )
    return bool(biases) or config.has_attn_bias is True
