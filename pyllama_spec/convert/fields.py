"""Reads values of a config.json; errors name the key that is missing or wrong.

Refuses checkpoints whose storage no kind of draft supports.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pyllama_spec.errors import ConversionError

# What a float32 of a GGUF can hold.
_MAX_NUMBER = 3.4028234e38


@dataclass(frozen=True, slots=True)
class Fields:
    """An object of a config.json. A key whose value is null counts as missing.

    Attributes:
        values: the object.
        where: the prefix of a key in messages, such as "transformer_layer_config.".
    """

    values: Mapping[str, Any]
    where: str = ""

    def has(self, key: str) -> bool:
        """Whether the key has a value."""
        return self.values.get(key) is not None

    def fail(self, key: str, wanted: str) -> ConversionError:
        """The error for a wrong value."""
        if not self.has(key):
            return ConversionError(f"config.json has no {self.where}{key} ({wanted})")
        return ConversionError(
            f"config.json: {self.where}{key} is {self.values[key]!r}, not {wanted}"
        )

    def size(self, key: str, default: int | None = None) -> int:
        """Reads a count of 1 or more."""
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if type(value) is not int or not 1 <= value < 1 << 31:
            raise self.fail(key, "a positive integer")
        return value

    def optional_size(self, key: str) -> int | None:
        """Reads a count of 1 or more; None if the key is missing."""
        return self.size(key) if self.has(key) else None

    def number(self, key: str, default: float | None = None) -> float:
        """Reads a finite number above 0."""
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is None or not is_number or not 0 < value <= _MAX_NUMBER:
            raise self.fail(key, "a positive number that float32 holds")
        return float(value)

    def optional_flag(self, key: str) -> bool | None:
        """Reads a boolean; None if the key is missing."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.fail(key, "true or false")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        """Reads a boolean."""
        value = self.optional_flag(key)
        return default if value is None else value

    def names(self, key: str) -> list[str]:
        """Reads a list of names that decides nothing; skips values that are not names."""
        value = self.values.get(key)
        return [x for x in value if isinstance(x, str)] if isinstance(value, list) else []

    def ids(self, key: str) -> tuple[int, ...] | None:
        """Reads a list of integers; None if the key is missing."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or any(type(k) is not int for k in value):
            raise self.fail(key, "a list of integers")
        return tuple(value)

    def numbers(self, key: str, n: int) -> list[float]:
        """Reads a list of n positive numbers."""
        value = self.values.get(key)
        if not isinstance(value, list) or any(type(x) not in (int, float) for x in value):
            raise self.fail(key, f"a list of {n} numbers")
        if len(value) != n or not all(0 < x <= _MAX_NUMBER for x in value):
            raise self.fail(key, f"a list of {n} positive numbers")
        return [float(x) for x in value]

    def inner(self, key: str) -> Fields:
        """The object of a key; empty if the key is missing."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, dict):
            raise self.fail(key, "an object")
        return Fields(value or {}, f"{self.where}{key}.")


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
