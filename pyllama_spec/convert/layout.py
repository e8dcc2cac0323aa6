"""The tensors of a checkpoint -> those of the GGUF, each used exactly once.

docs/eagle3.md lists the GGUF's names and shapes. Names of checkpoints differ in three things: an
optional "model." in front, "midlayer." for "layers.0.", and what norms before fc are called.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pyllama_spec.convert.config import DraftConfig
from pyllama_spec.convert.vocabulary import map_vocabulary
from pyllama_spec.errors import ConversionError
from pyllama_spec.gguf.tensors import Ids, PlannedTensor, Rows, SourceTensor

# What a checkpoint may hold and the engine computes itself, or what belongs to training: buffers of
# RoPE, and speculators' copies of the target's norm and output.
_IGNORED = re.compile(
    r"(^|\.)rotary_emb\.(inv_freq|original_inv_freq|cos_cached|sin_cached)$|^verifier_(norm|lm_head)\.weight$"
)


@dataclass(frozen=True, slots=True)
class Plan:
    """All of them, and what they say of the head.

    Attributes:
        tensors: in the GGUF's order.
        n_layer: decoder layers.
        n_draft_vocab: rows of the reduced output, None for the whole vocabulary.
        notes: what the user should know.

    """

    tensors: tuple[PlannedTensor, ...]
    n_layer: int
    n_draft_vocab: int | None
    notes: tuple[str, ...]


class Shelf:
    """The tensors by their common names; each is taken once.

    Raises:
        ConversionError: two tensors have the same common name.

    """

    def __init__(self, tensors: Mapping[str, SourceTensor]) -> None:
        self._left: dict[str, SourceTensor] = {}
        self.has_midlayer = any(re.match(r"(model\.)?midlayer\.", name) for name in tensors)
        for name, tensor in tensors.items():
            common = common_name(name)
            if _IGNORED.search(common):
                continue
            if common in self._left:
                raise ConversionError(
                    f"{name} and {self._left[common].name} are the same tensor by different names"
                )
            self._left[common] = tensor

    def find(self, name: str) -> SourceTensor | None:
        """The tensor if it is still there; it stays there."""
        return self._left.get(name)

    def layers(self) -> set[int]:
        """Numbers of the decoder layers that are there."""
        found = (re.match(r"layers\.(\d+)\.", name) for name in self._left)
        return {int(match[1]) for match in found if match}

    def take(self, name: str, *shape: int) -> SourceTensor:
        """The weights of this name, which must have this shape.

        Raises:
            ConversionError: they are missing, no floats, or of another shape.

        """
        tensor = self._left.pop(name, None)
        if tensor is None:
            raise ConversionError(f"the tensor {name} {list(shape)} is missing")
        if tensor.shape != shape:
            raise ConversionError(
                f"the tensor {tensor.name} has the shape {list(tensor.shape)}, not {list(shape)}"
            )
        if not tensor.is_float:
            raise ConversionError(
                f"the tensor {tensor.name} is {tensor.dtype}: it holds no weights"
            )
        return tensor

    def take_ids(self, name: str) -> Ids | None:
        """The integers of this name, None where there are none."""
        tensor = self._left.pop(name, None)
        return None if tensor is None else tensor.integers()

    def check_empty(self) -> None:
        """Raises ConversionError when something was not taken."""
        if self._left:
            rest = sorted((t.name, list(t.shape)) for t in self._left.values())
            names = ", ".join(f"{name} {shape}" for name, shape in rest[:3])
            more = f" and {len(rest) - 3} more" if len(rest) > 3 else ""
            raise ConversionError(
                f"nothing in config.json says what these tensors are for: {names}{more}"
            )


def common_name(name: str) -> str:
    """model.midlayer.x -> layers.0.x; other names lose "model." alone."""
    name = name.removeprefix("model.")
    return f"layers.0.{name[9:]}" if name.startswith("midlayer.") else name


def neighbour_rows(n_head: int, head_size: int, n_between: int = 0) -> Rows:
    """The order of rows that turns RoPE's pairs (i, i + head_size / 2) into (2i, 2i + 1).

    Row j of a head in the GGUF is row j / 2 of the checkpoint for even j, and head_size / 2 further
    for odd j. `n_between` rows after each head's stay as they are (gates). int `[n_head *
    (head_size + n_between)]`.
    """
    pairs = np.arange(head_size).reshape(2, head_size // 2).T.ravel()
    head = np.concatenate([pairs, head_size + np.arange(n_between)])
    starts = np.arange(n_head) * (head_size + n_between)
    rows: Rows = (starts[:, None] + head).ravel().astype(np.intp)
    return rows


def plan_tensors(
    config: DraftConfig,
    tensors: Mapping[str, SourceTensor],
    *,
    n_target_layers: int,
    target_n_embd: int,
    n_vocab: int,
) -> Plan:
    """Says where each tensor of the GGUF comes from.

    Args:
        config: the head's config.json.
        tensors: by their names in the files.
        n_target_layers: how many layers of the target the head reads.
        target_n_embd: width of the target's rows.
        n_vocab: the target's vocabulary.

    Raises:
        ConversionError: a tensor is missing, left over, of a wrong shape, or contradicts an option.

    """
    shelf = Shelf(tensors)
    n_layer, notes = _count_layers(config, shelf)
    planned = _features(config, shelf, n_target_layers, target_n_embd)
    n_draft = _n_draft(config, shelf)
    mapped = map_vocabulary(
        shelf.take_ids("d2t"), shelf.take_ids("t2d"),
        n_draft=n_draft, n_trained=config.n_vocab, n_vocab=n_vocab,
        has_output=shelf.find("lm_head.weight") is not None,
    )  # fmt: skip
    outer, outer_notes = _outer(
        config, shelf, mapped.target_ids, n_draft, n_vocab, config.n_embd == target_n_embd
    )
    planned += outer
    for index in range(n_layer):
        planned += _layer(config, shelf, index)
    shelf.check_empty()
    planned += [PlannedTensor(n, v.shape, values=v) for n, v in config.rope.tensors.items()]
    n_reduced = None if mapped.target_ids is None else n_draft
    return Plan(tuple(planned), n_layer, n_reduced, (*notes, *mapped.notes, *outer_notes))


def _count_layers(config: DraftConfig, shelf: Shelf) -> tuple[int, list[str]]:
    found = shelf.layers()
    if shelf.has_midlayer and found == {0}:
        if config.n_layer == 1:
            return 1, []
        # yuhuili/EAGLE3-Vicuna1.3-13B: the number is the target's.
        return 1, [f"one layer, though config.json says num_hidden_layers {config.n_layer}"]
    if found != set(range(config.n_layer)):
        raise ConversionError(
            f"config.json says num_hidden_layers {config.n_layer}, the tensors are of the layers "
            f"{sorted(found)}"
        )
    return config.n_layer, []


def _features(config: DraftConfig, shelf: Shelf, n_layers: int, width: int) -> list[PlannedTensor]:
    """fc, and the norms before it."""
    for option, name, is_on in (
        ("norm_before_fc", "input_norm.weight", config.norm_before_fc),
        ("fc_norm", "fc_norm.0.weight", config.fc_norm),
    ):
        found = shelf.find(name)
        if found is not None and not is_on:
            raise ConversionError(
                f"there is {found.name}, but config.json does not say {option}: true"
            )
    planned = [_plain("fc.weight", shelf.take("fc.weight", config.n_embd, n_layers * width))]
    if shelf.find("fc.bias") is not None:
        planned.append(_plain("fc.bias", shelf.take("fc.bias", config.n_embd)))
    if config.norm_before_fc:
        source = shelf.take("input_norm.weight", n_layers * width)
        planned.append(_plain("enc.output_norm.weight", source))
    for index in range(n_layers if config.fc_norm else 0):
        source = shelf.take(f"fc_norm.{index}.weight", width)
        planned.append(_plain(f"enc.output_norm.{index}.weight", source))
    return planned


def _plain(name: str, source: SourceTensor) -> PlannedTensor:
    return PlannedTensor(name, source.shape, source)


def _first_rows(name: str, source: SourceTensor, n: int) -> PlannedTensor:
    rows = None if n == source.shape[0] else np.arange(n)
    return PlannedTensor(name, (n, *source.shape[1:]), source, rows)


def _n_draft(config: DraftConfig, shelf: Shelf) -> int:
    """Rows of the head's output."""
    head = shelf.find("lm_head.weight")
    if config.n_draft_vocab is not None or head is None:
        return config.n_draft_vocab or config.n_vocab
    if head.shape[:1] != (config.n_vocab,):
        raise ConversionError(
            f"config.json has no draft_vocab_size, and {head.name} {list(head.shape)} is not as "
            f"high as the vocabulary, {config.n_vocab}"
        )
    return config.n_vocab


def _outer(
    config: DraftConfig,
    shelf: Shelf,
    target_ids: Ids | None,
    n_draft: int,
    n_vocab: int,
    can_share: bool,
) -> tuple[list[PlannedTensor], list[str]]:
    """Token embedding, output, its norm and d2t."""
    planned = [_plain("output_norm.weight", shelf.take("norm.weight", config.n_embd))]
    notes: list[str] = []
    embedding = None
    if shelf.find("embed_tokens.weight") is not None:
        embedding = shelf.take("embed_tokens.weight", config.n_vocab, config.n_embd)
        if config.n_vocab < n_vocab:
            raise ConversionError(
                f"{embedding.name} has {config.n_vocab} rows, fewer than the target's {n_vocab} "
                "tokens; is this the target that the draft was made for?"
            )
        planned.append(_first_rows("token_embd.weight", embedding, n_vocab))
        if config.n_vocab > n_vocab:
            notes.append(
                f"{embedding.name} is cut from {config.n_vocab} to the target's {n_vocab} rows"
            )
    elif not can_share:
        raise ConversionError(
            "the tensor embed_tokens.weight is missing, and the target's cannot be used: the head "
            f"is {config.n_embd} wide and the target is not"
        )
    if shelf.find("lm_head.weight") is not None:
        head = shelf.take("lm_head.weight", n_draft, config.n_embd)
        n_rows = n_draft if target_ids is not None else n_vocab
        planned.append(_first_rows("output.weight", head, n_rows))
        if n_rows < n_draft:
            notes.append(f"{head.name} is cut from {n_draft} to the target's {n_vocab} rows")
    else:
        is_whole = n_draft == config.n_vocab and target_ids is None
        planned += _shared_output(config, embedding, n_vocab, can_share, is_whole)
    if target_ids is not None:
        planned.append(PlannedTensor("d2t", target_ids.shape, values=target_ids))
    return planned, notes


def _shared_output(
    config: DraftConfig,
    embedding: SourceTensor | None,
    n_vocab: int,
    can_share: bool,
    is_whole: bool,
) -> list[PlannedTensor]:
    """The output of a head that brings none: its embedding where it is tied, or the target's."""
    missing = "the tensor lm_head.weight is missing"
    if not is_whole:
        raise ConversionError(
            f"{missing}: the head has a vocabulary of its own, and the target's output has another"
        )
    if config.is_tied:
        if embedding is None:
            raise ConversionError(
                f"{missing}, as is embed_tokens.weight, to which tie_word_embeddings ties it"
            )
        return [_first_rows("output.weight", embedding, n_vocab)]
    if not can_share:
        raise ConversionError(
            f"{missing}, and the target's cannot be used: the head is {config.n_embd} wide and the "
            "target is not"
        )
    return []


def _layer(config: DraftConfig, shelf: Shelf, index: int) -> list[PlannedTensor]:
    """One decoder layer; the first one reads a token and a row side by side."""
    blk, src = f"blk.{index}.", f"layers.{index}."
    n_embd, n_ff = config.n_embd, config.n_ff
    planned = [_plain(f"{blk}attn_norm.weight", shelf.take(f"{src}input_layernorm.weight", n_embd))]
    if index == 0:
        source = shelf.take(f"{src}hidden_norm.weight", n_embd)
        planned.append(_plain(f"{blk}attn_norm_2.weight", source))
    planned += _attention(config, shelf, index)
    source = shelf.take(f"{src}post_attention_layernorm.weight", n_embd)
    planned.append(_plain(f"{blk}ffn_norm.weight", source))
    for part, shape in (("gate", (n_ff, n_embd)), ("up", (n_ff, n_embd)), ("down", (n_embd, n_ff))):
        source = shelf.take(f"{src}mlp.{part}_proj.weight", *shape)
        planned.append(_plain(f"{blk}ffn_{part}.weight", source))
    return planned


def _attention(config: DraftConfig, shelf: Shelf, index: int) -> list[PlannedTensor]:
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
    has_bias = _has_bias(config, shelf, src)
    for part, name, n_out, n_columns, rows in parts:
        weight = shelf.take(f"{src}{part}_proj.weight", n_out, n_columns)
        planned.append(PlannedTensor(f"{blk}{name}.weight", weight.shape, weight, rows))
        if has_bias and (part != "o" or shelf.find(f"{src}o_proj.bias") is not None):
            bias = shelf.take(f"{src}{part}_proj.bias", n_out)
            planned.append(PlannedTensor(f"{blk}{name}.bias", bias.shape, bias, rows))
    norms = [shelf.find(f"{src}{part}_norm.weight") for part in "qk"]
    if config.has_qk_norm or any(norms):
        for part in "qk":
            norm = shelf.take(f"{src}{part}_norm.weight", size)
            rows = neighbour_rows(1, size)
            planned.append(PlannedTensor(f"{blk}attn_{part}_norm.weight", norm.shape, norm, rows))
    return planned


def _has_bias(config: DraftConfig, shelf: Shelf, src: str) -> bool:
    """Whether q, k and v have biases; that of o may be missing, as in Qwen2's attention."""
    found = [t for part in "qkvo" if (t := shelf.find(f"{src}{part}_proj.bias")) is not None]
    if found and config.has_attn_bias is False:
        raise ConversionError(
            f"there is {found[0].name}, but config.json says attention_bias: false"
        )
    return bool(found) or config.has_attn_bias is True
