"""A draft's tensors as a table: which tensor of a checkpoint becomes which of the GGUF."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from pyllama_spec.errors import ConversionError
from pyllama_spec.gguf.tensors import Ids, PlannedTensor, Rows, SourceTensor

# Pattern of a checkpoint's name -> the name that most of them have.
_NAMES = (
    (re.compile(r"^model\."), ""),
    (re.compile(r"^midlayer\."), "layers.0."),
    (re.compile(r"^encoder\.fc\."), "fc."),
    (re.compile(r"^encoder\.output_norm_enc\."), "hidden_norm."),
    (re.compile(r"^confidence_proj\."), "confidence_head.proj."),
    (re.compile(r"^(candidate_selector\.\w+_codebook)\.weight$"), r"\1"),
    (re.compile(r"\.self_attn\.(attention_sink_bias|sinks)(\.weight)?$"), ".self_attn.sinks"),
)
# Tensors that the engine computes itself, or that belong to training: buffers of
# RoPE, and speculators' copies of the target's norm and output.
_IGNORED = re.compile(
    r"(^|\.)rotary_emb\.(inv_freq|original_inv_freq|cos_cached|sin_cached)$|^verifier_(norm|lm_head)\.weight$"
)


class CheckpointTensors:
    """The tensors of a checkpoint by the names that all layouts share; each is taken once."""

    def __init__(self, tensors: Mapping[str, SourceTensor]) -> None:
        self._left: dict[str, SourceTensor] = {}
        for name, tensor in tensors.items():
            common = name
            for renamed, instead in _NAMES:
                common = renamed.sub(instead, common)
            if _IGNORED.search(common):
                continue
            if common in self._left:
                raise ConversionError(
                    f"{name} and {self._left[common].name} are the same tensor by different names"
                )
            self._left[common] = tensor

    def find(self, name: str) -> SourceTensor | None:
        """The tensor if it was not taken yet; it is not taken by this."""
        return self._left.get(name)

    def matrix(self, name: str) -> tuple[int, ...]:
        """The shape of a matrix that every draft of the kind has."""
        tensor = self._left.get(name)
        if tensor is None or len(tensor.shape) != 2:
            raise ConversionError(f"the matrix {name} is missing: this is no draft of a known kind")
        return tensor.shape

    def matching(self, pattern: str) -> list[str]:
        """The names, of those not taken yet, in which the pattern occurs."""
        return [name for name in self._left if re.search(pattern, name)]

    def share(self, name: str, source: str) -> None:
        """Lets a missing tensor be another one, if that exists."""
        if name not in self._left and source in self._left:
            self._left[name] = self._left[source]

    def layers(self) -> set[int]:
        """The numbers of the decoder layers that have tensors."""
        return {int(name.split(".")[1]) for name in self.matching(r"^layers\.\d+\.")}

    def check_layers(self, n_layer: int) -> None:
        """Raises ConversionError when there are more or fewer layers than config.json says."""
        if (present := self.layers()) != set(range(n_layer)):
            raise ConversionError(
                f"config.json says num_hidden_layers {n_layer}, the tensors are of the layers "
                f"{sorted(present)}"
            )

    def take(self, name: str, shape: tuple[int, ...], why: str = "") -> SourceTensor:
        """Takes the weights of this name, which must have this shape.

        Args:
            name: the common name.
            shape: the shape.
            why: why the tensor is needed, for the error.
        """
        tensor = self._left.pop(name, None)
        if tensor is None:
            needed = f": {why}" if why else ""
            raise ConversionError(f"the tensor {name} {list(shape)} is missing{needed}")
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
        """Takes the integers of this name; None if there are none."""
        tensor = self._left.pop(name, None)
        return None if tensor is None else tensor.integers()

    def check_empty(self) -> None:
        """Raises ConversionError if a tensor was not taken."""
        if self._left:
            rest = sorted((t.name, list(t.shape)) for t in self._left.values())
            names = ", ".join(f"{name} {shape}" for name, shape in rest[:3])
            more = f" and {len(rest) - 3} more" if len(rest) > 3 else ""
            raise ConversionError(
                f"the checkpoint has tensors that config.json does not explain: {names}{more}"
            )


@dataclass(frozen=True, slots=True)
class Row:
    """A tensor of the GGUF, or one for each layer."""

    name: str  # the name in the GGUF
    source: str  # the common name in the checkpoint
    shape: str  # its sizes in the checkpoint: names in Facts.sizes, or numbers
    need: str = ""  # a name in Facts.needs; "" for a tensor that every draft has
    order: str = ""  # a name in Facts.orders: the order of its rows in the GGUF
    n_rows: str = ""  # a name in Facts.sizes: how many of its first rows the GGUF has; "" for all


@dataclass(frozen=True, slots=True)
class Table:
    """The tensors of a kind of draft, in the GGUF's order."""

    # the tensors outside the decoder layers; one with "{i}" in its name exists for each of the
    # target's layers that the draft reads
    outer: tuple[Row, ...]
    # those of each decoder layer, without the names' prefixes "blk.N." and "layers.N."
    layer: tuple[Row, ...]


ATTENTION = (
    Row("attn_q.weight", "self_attn.q_proj.weight", "n_q_gated n_in", order="q"),
    Row("attn_q.bias", "self_attn.q_proj.bias", "n_q_gated", "bias", "q"),
    Row("attn_k.weight", "self_attn.k_proj.weight", "n_kv n_in", order="k"),
    Row("attn_k.bias", "self_attn.k_proj.bias", "n_kv", "bias", "k"),
    Row("attn_v.weight", "self_attn.v_proj.weight", "n_kv n_in"),
    Row("attn_v.bias", "self_attn.v_proj.bias", "n_kv", "bias"),
    Row("attn_output.weight", "self_attn.o_proj.weight", "n_embd n_q"),
    Row("attn_output.bias", "self_attn.o_proj.bias", "n_embd", "o_bias"),
    Row("attn_q_norm.weight", "self_attn.q_norm.weight", "head_size", "qk_norm", "head"),
    Row("attn_k_norm.weight", "self_attn.k_norm.weight", "head_size", "qk_norm", "head"),
)
MLP = (
    Row("ffn_gate.weight", "mlp.gate_proj.weight", "n_ff n_embd"),
    Row("ffn_up.weight", "mlp.up_proj.weight", "n_ff n_embd"),
    Row("ffn_down.weight", "mlp.down_proj.weight", "n_embd n_ff"),
)


@dataclass(frozen=True, slots=True)
class Facts:
    """What config.json and the target say about the tensors of a table."""

    sizes: Mapping[str, int]  # the sizes by name
    # by name, whether a tensor is needed: True; None for one that may be missing; False for one
    # that the draft cannot have; a str says why it is needed
    needs: Mapping[str, bool | str | None] = field(default_factory=dict)
    # orders of rows by name; a name that is missing keeps the checkpoint's
    orders: Mapping[str, Rows] = field(default_factory=dict)
    # tensors that no checkpoint holds, by their names in the GGUF
    made: Mapping[str, PlannedTensor] = field(default_factory=dict)


def plan_tensors(
    table: Table, tensors: CheckpointTensors, layers: list[Facts], notes: list[str]
) -> list[PlannedTensor]:
    """Maps each tensor of the GGUF to its source; raises if one is missing or left.

    Args:
        table: the kind's table.
        tensors: the tensors of the checkpoint.
        layers: the facts of each decoder layer; those of the first one are also of the rest.
        notes: remarks for the user are appended here.
    """
    first = layers[0]
    planned: list[PlannedTensor] = []
    for row in table.outer:
        for i in range(first.sizes["n_target_layers"] if "{i}" in row.name else 1):
            name, source = row.name.format(i=i), row.source.format(i=i)
            planned += _planned(row, name, source, tensors, first, notes)
    for i, facts in enumerate(layers):
        for row in table.layer:
            name, source = f"blk.{i}.{row.name}", f"layers.{i}.{row.source}"
            planned += _planned(row, name, source, tensors, facts, notes)
    tensors.check_empty()
    return planned


def _planned(
    row: Row, name: str, source: str, tensors: CheckpointTensors, facts: Facts, notes: list[str]
) -> Iterator[PlannedTensor]:
    if name in facts.made:
        yield facts.made[name]
        return
    need = facts.needs[row.need] if row.need else True
    if need is False or (need is None and tensors.find(source) is None):
        return
    shape = tuple(int(n) if n.isdigit() else facts.sizes[n] for n in row.shape.split())
    tensor = tensors.take(source, shape, need if isinstance(need, str) else "")
    n_rows, rows = shape[0], facts.orders.get(row.order)
    if row.n_rows and n_rows != facts.sizes[row.n_rows]:
        n_rows = facts.sizes[row.n_rows]
        if shape[0] < n_rows:
            raise ConversionError(
                f"{tensor.name} has {shape[0]} rows, fewer than the target's {n_rows} tokens; is "
                "this the target that the draft was made for?"
            )
        notes.append(f"{tensor.name} is cut from {shape[0]} to the target's {n_rows} rows")
        rows = np.arange(n_rows)
    yield PlannedTensor(name, (n_rows, *shape[1:]), tensor, rows)
