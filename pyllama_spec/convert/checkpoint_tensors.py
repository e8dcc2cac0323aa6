"""The tensors of a checkpoint by the names that all layouts share; each must be used once."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import numpy as np

from pyllama_spec.convert.sizes import Sizes
from pyllama_spec.errors import ConversionError
from pyllama_spec.gguf.tensors import Ids, PlannedTensor, Rows, SourceTensor

# Tensors that the engine computes itself, or that belong to training: buffers of
# RoPE, and speculators' copies of the target's norm and output.
_IGNORED = re.compile(
    r"(^|\.)rotary_emb\.(inv_freq|original_inv_freq|cos_cached|sin_cached)$|^verifier_(norm|lm_head)\.weight$"
)


class CheckpointTensors:
    """The tensors by their common names; each is taken once."""

    def __init__(
        self, tensors: Mapping[str, SourceTensor], common_name: Callable[[str], str]
    ) -> None:
        self._left: dict[str, SourceTensor] = {}
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
        """The tensor if it was not taken yet; it is not taken by this."""
        return self._left.get(name)

    def layers(self) -> set[int]:
        """The numbers of the decoder layers that have tensors."""
        matches = (re.match(r"layers\.(\d+)\.", name) for name in self._left)
        return {int(match[1]) for match in matches if match}

    def check_layers(self, n_layer: int) -> None:
        """Raises ConversionError when there are more or fewer layers than config.json says."""
        if (present := self.layers()) != set(range(n_layer)):
            raise ConversionError(
                f"config.json says num_hidden_layers {n_layer}, the tensors are of the layers "
                f"{sorted(present)}"
            )

    def take(self, name: str, *shape: int) -> SourceTensor:
        """Takes the weights of this name, which must have this shape."""
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


def plain(name: str, source: SourceTensor, rows: Rows | None = None) -> PlannedTensor:
    """A tensor with all its rows, in their order or a given one."""
    return PlannedTensor(name, source.shape, source, rows)


def first_rows(name: str, source: SourceTensor, n: int) -> PlannedTensor:
    """The first n rows of a tensor."""
    rows = None if n == source.shape[0] else np.arange(n)
    return PlannedTensor(name, (n, *source.shape[1:]), source, rows)


def mlp(sizes: Sizes, tensors: CheckpointTensors, index: int) -> list[PlannedTensor]:
    """The gated MLP of a decoder layer."""
    n_embd, n_ff = sizes.n_embd, sizes.n_ff
    shapes = {"gate": (n_ff, n_embd), "up": (n_ff, n_embd), "down": (n_embd, n_ff)}
    return [
        plain(
            f"blk.{index}.ffn_{part}.weight",
            tensors.take(f"layers.{index}.mlp.{part}_proj.weight", *shape),
        )
        for part, shape in shapes.items()
    ]
