"""The shape of a value as JSON: its type, its keys, and its comparable content."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

Shape = dict[str, Any]
# The number of items of a list or an array that are compared.
MOST = 40


def shape_of(value: Any, depth: int = 0) -> Shape:
    """A description of a value; an iterator is read to its end."""
    kind = type(value).__name__
    if value is None or isinstance(value, (bool, int, str)):
        return {"type": kind, "value": value}
    if isinstance(value, float):
        return {"type": kind, "value": value if math.isfinite(value) else repr(value)}
    if isinstance(value, (bytes, bytearray)):
        return {"type": kind, "value": bytes(value).decode("latin-1")}
    if hasattr(value, "model_dump"):
        return {"type": kind, "keys": shape_of(value.model_dump(), depth + 1)["keys"]}
    if isinstance(value, Mapping):
        keys = {str(key): shape_of(one, depth + 1) for key, one in value.items()}
        return {"type": "dict", "keys": keys}
    if hasattr(value, "dtype") and not value.shape:
        return shape_of(value.item(), depth)  # NumPy scalars count as Python numbers
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        flat = [shape_of(one.item(), depth + 1) for one in value.ravel()[:MOST]]
        return {
            "type": kind, "length": [str(value.dtype), *map(int, value.shape)], "items": flat,
        }  # fmt: skip
    return _row_or_object(value, kind, depth)


def _row_or_object(value: Any, kind: str, depth: int) -> Shape:
    if isinstance(value, Iterator):
        return {"type": "iterator", "items": [shape_of(one, depth + 1) for one in value]}
    if isinstance(value, (set, frozenset)):
        value = sorted(value, key=str)
    if isinstance(value, (list, tuple)) or kind == "deque":
        # Subclasses of list and tuple count as sequences too.
        return {
            "type": kind, "length": [len(value)],
            "items": [shape_of(one, depth + 1) for one in list(value)[:MOST]],
        }  # fmt: skip
    if isinstance(value, type):
        return {"type": "class", "value": value.__name__}
    return {"type": "function" if callable(value) and kind == "function" else kind}
