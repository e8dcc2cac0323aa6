"""Refuses checkpoints whose storage no kind of draft supports."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from pyllama_spec.convert.fields import Fields
from pyllama_spec.errors import ConversionError

Shapes = Mapping[str, tuple[int, ...]]
# A name that only one kind of tensor has -> what it is.
Kinds = Iterable[tuple[str, str]]
_LORA = r"(^|\.)lora_[AB]\."
_FUSED = r"\.(qkv_proj|gate_up_proj)\."


def first_name(pattern: str, shapes: Shapes) -> str | None:
    """The first name, in alphabetical order, in which the pattern occurs."""
    return next((name for name in sorted(shapes) if re.search(pattern, name)), None)


def refuse_by_tensor(kinds: Kinds, shapes: Shapes) -> None:
    """Raises ConversionError for tensors of another kind of draft."""
    for pattern, kind in kinds:
        if name := first_name(pattern, shapes):
            raise ConversionError(
                f"this is {kind}, which is not supported: it has the tensor {name}"
            )


def refuse_quantised(top: Fields) -> None:
    """Raises ConversionError for a quantised checkpoint."""
    for key in ("quantization_config", "compression_config"):
        if top.has(key):
            raise ConversionError(
                f"config.json has {key}: the checkpoint is quantised; give the unquantised one"
            )


def refuse_packed(shapes: Shapes) -> None:
    """Raises ConversionError for adapters and fused projections."""
    if name := first_name(_LORA, shapes):
        raise ConversionError(f"{name} is part of a LoRA adapter; merge it into the draft first")
    if name := first_name(_FUSED, shapes):
        raise ConversionError(
            f"{name} holds several projections in one tensor; give the checkpoint that has q_proj, "
            "k_proj, v_proj, gate_proj and up_proj as separate tensors"
        )
