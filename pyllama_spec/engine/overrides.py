"""Overrides the keys of a model's file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from pyllama_spec.engine.binding import ffi
from pyllama_spec.engine.checks import int32, real, text
from pyllama_spec.errors import ArgumentError, shown

Override = bool | int | float | str

# Keys that decide how texts are tokenized and how long, wide or sharp attention is. The rest
# describe how the weights lie in the file: another value there makes the engine read outside of
# them.
_MAY_BE = re.compile(
    r"general\.(name|description|author|url|license)|tokenizer\.ggml\.(?!model|tokens|merges|scores).+"
    r"|tokenizer\.chat_template|[\w-]+\.(context_length|rope\.(freq_base|freq_scale|scaling\.[\w.]+)"
    r"|expert_used_count|expert_weights_scale|attention\.(causal|scale|sliding_window"
    r"|layer_norm_rms_epsilon|layer_norm_epsilon)|attn_logit_softcapping|final_logit_softcapping"
    r"|logit_scale|residual_scale|embedding_scale|pooling_type)"
)
# The text size of the engine's struct, without the zero at the end.
_MAX_BYTES = 127
_INT, _REAL, _BOOL, _TEXT = range(4)


class RawOverrides(NamedTuple):
    """The overrides as C structs.

    Attributes:
        array: the array of struct llama_spec_override, or NULL.
        keep: the memory that the array points to.

    """

    array: Any
    keep: list[Any]


def raw_overrides(overrides: Mapping[str, Override]) -> RawOverrides:
    """Converts the overrides to C structs.

    Raises:
        ArgumentError: a key may not be overridden, or a value has an unsupported type.

    """
    if not isinstance(overrides, Mapping):
        raise ArgumentError(f"kv_overrides={shown(overrides)} is not a dict of keys and values")
    array = ffi.new("struct llama_spec_override[]", max(len(overrides), 1))
    keep: list[Any] = [array]
    for raw, (key, value) in zip(array, overrides.items(), strict=False):
        if not isinstance(key, str) or not _MAY_BE.fullmatch(key) or len(key) > _MAX_BYTES:
            raise ArgumentError(
                f"kv_overrides: {shown(key)} may not be overridden: it describes how the weights "
                "are stored in the file; tokenizer.ggml.*, context_length, rope.*, "
                "expert_used_count and the "
                "like may"
            )
        raw.key = _c_string(text(key, "a key of kv_overrides"), keep)
        _fill(raw, key, value, keep)
    return RawOverrides(array if overrides else ffi.NULL, keep)


def _fill(raw: Any, key: str, value: object, keep: list[Any]) -> None:
    if isinstance(value, bool):
        raw.kind, raw.whole = _BOOL, value
    elif isinstance(value, str):
        if len(text(value, f"kv_overrides: {key}").encode()) > _MAX_BYTES:
            raise ArgumentError(f"kv_overrides: the text of {key} has more than {_MAX_BYTES} bytes")
        raw.kind, raw.text = _TEXT, _c_string(value, keep)
    elif hasattr(value, "__index__"):
        raw.kind, raw.whole = _INT, int32(value, f"kv_overrides: {key}")
        if raw.whole < 1 and key.endswith(("expert_used_count", "context_length")):
            raise ArgumentError(f"kv_overrides: {key}={shown(value)} is not at least 1")
    else:
        raw.kind, raw.real = _REAL, real(value, f"kv_overrides: {key}")


def _c_string(value: str, keep: list[Any]) -> Any:
    keep.append(ffi.new("char[]", value.encode()))
    return keep[-1]
