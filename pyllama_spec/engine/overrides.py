"""Overrides the keys of a model's file."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from pyllama_spec.engine.binding import ffi
from pyllama_spec.engine.checks import FLOAT32_MAX, boolean, int32, integer, real, text
from pyllama_spec.errors import ArgumentError

Override = bool | int | float | str

# The text size of the engine's struct, without the zero at the end.
_MAX_BYTES = 127
_INT, _REAL, _BOOL, _TEXT = range(4)
_NAMES = (
    "a whole number of 32 bits", "a finite number", bool, f"a text of at most {_MAX_BYTES} bytes"
)  # fmt: skip
# Keys that decide how texts are tokenized and how long, wide or sharp attention is, with the type
# that the engine reads: it ignores a value of another one. Most of the rest describe how the
# weights lie in the file: another value there makes the engine read outside of them, or abort.
_KEYS = tuple(
    (re.compile(pattern), kind)
    for pattern, kind in (
        (r"general\.(name|description|author|url|license)|tokenizer\.ggml\.pre", _TEXT),
        (r"[\w-]+\.rope\.scaling\.type", _TEXT),
        (r"tokenizer\.ggml\.add_(bos_token|eos_token|sep_token|space_prefix)", _BOOL),
        (r"tokenizer\.ggml\.(remove_extra_whitespaces|normalizer\.\w+)", _BOOL),
        (r"[\w-]+\.(attention\.causal|rope\.scaling\.finetuned)", _BOOL),
        (r"[\w-]+\.(expert_weights_norm|use_parallel_residual)", _BOOL),
        (r"tokenizer\.ggml\.(\w+_token_id|token_type_count)", _INT),
        (r"[\w-]+\.(context_length|expert_used_count|attention\.sliding_window)", _INT),
        (r"[\w-]+\.expert_gating_func", _INT),
        (r"[\w-]+\.(pooling_type|rope\.scaling\.original_context_length)", _INT),
        (r"[\w-]+\.rope\.(freq_base|freq_base_swa|scale_linear)", _REAL),
        (r"[\w-]+\.rope\.scaling\.(factor|alpha|attn_factor|yarn_\w+)", _REAL),
        (r"[\w-]+\.attention\.((output_)?scale|layer_norm_rms_epsilon|layer_norm_epsilon)", _REAL),
        (r"[\w-]+\.(attn_logit_softcapping|final_logit_softcapping|expert_weights_scale)", _REAL),
        (r"[\w-]+\.(logit_scale|residual_scale|embedding_scale)", _REAL),
    )
)
_NOT_TAKEN = (
    "it is none of the keys that this package takes, such as tokenizer.ggml.add_bos_token, "
    "ARCH.context_length, ARCH.rope.freq_base and ARCH.expert_used_count"
)
_NOT_NEGATIVE = ("_epsilon", ".rope.scale_linear", ".rope.scaling.factor")
# The engine aborts at another one: see llama_expert_gating_func_type.
_MAX_GATING = 4


class RawOverrides(NamedTuple):
    """The overrides as C structs, or NULL, and the memory that they point to."""

    array: Any
    keep: list[Any]


def raw_overrides(overrides: Mapping[str, Override]) -> RawOverrides:
    """Converts the overrides to C structs."""
    if not isinstance(overrides, Mapping):
        raise ArgumentError("kv_overrides", overrides, "a dict of keys and values")
    array = ffi.new("struct llama_spec_override[]", max(len(overrides), 1))
    keep: list[Any] = [array]
    for raw, (key, value) in zip(array, overrides.items(), strict=False):
        wanted = _kind_of_key(key)
        raw.key = _c_string(key, keep)
        _fill(raw, key, value, wanted, keep)
    return RawOverrides(array if overrides else ffi.NULL, keep)


def facts_of(overrides: Mapping[str, Override]) -> list[str]:
    """The overrides as the engine reads them, for an identity: 777 and 777.0 are the same."""
    array = raw_overrides(overrides).array
    facts = []
    for i, key in enumerate(overrides):
        raw = array[i]
        value = {_TEXT: str(overrides[key]), _REAL: raw.real}.get(raw.kind, raw.whole)
        facts.append(repr((key, raw.kind, value)))
    return sorted(facts)


def _kind_of_key(key: object) -> int:
    """The type that the engine reads of a key; ArgumentError for one that is not in _KEYS."""
    if isinstance(key, str) and len(text(key, "kv_overrides").encode()) <= _MAX_BYTES:
        for pattern, kind in _KEYS:
            if pattern.fullmatch(key):
                return kind
    raise ArgumentError("kv_overrides", key, problem="may not be overridden", remedy=_NOT_TAKEN)


def _fill(raw: Any, key: str, value: object, wanted: int, keep: list[Any]) -> None:
    """Sets the value; ArgumentError where the engine would not read it, or would cut it."""
    kind = _kind_of(value)
    if wanted == _REAL and kind == _INT:
        kind = _REAL
    fault = ArgumentError(f"kv_overrides[{key!r}]", value, _NAMES[wanted])
    if kind != wanted:
        raise fault
    raw.kind = kind
    try:
        if kind == _BOOL:
            raw.whole = bool(value)
        elif kind == _INT:
            raw.whole = int32(value, key)
        elif kind == _REAL:
            raw.real = real(value, key)
    except ArgumentError:
        raise fault from None
    if kind == _TEXT:
        raw.text = _c_string(text(value, f"kv_overrides[{key!r}]"), keep)
    if (kind == _REAL and abs(raw.real) > FLOAT32_MAX) or len(keep[-1]) > _MAX_BYTES + 1:
        raise fault
    if kind in (_INT, _REAL):
        _check_range(key, raw.whole if kind == _INT else raw.real)


def _check_range(key: str, value: float) -> None:
    """Refuses a number that the engine has not: it would fail, abort or compute NaN."""
    what = ""
    if key.endswith((".rope.freq_base", ".rope.freq_base_swa")) and value <= 0:
        what = "above 0"
    elif key.endswith(_NOT_NEGATIVE) and value < 0:
        what = "at least 0"
    elif key.endswith(("expert_used_count", "context_length")) and value < 1:
        what = "at least 1"
    elif key.endswith(".expert_gating_func") and not 1 <= value <= _MAX_GATING:
        what = f"from 1 to {_MAX_GATING}"
    elif key.endswith("_token_id") and value < 0:
        what = "the id of a token"
    if what:
        raise ArgumentError(f"kv_overrides[{key!r}]", value, what)


def check_fits(overrides: Mapping[str, Override], arch: str, n_vocab: int) -> None:
    """Refuses what the engine would ignore: keys of other files, and tokens that do not exist."""
    for key, value in overrides.items():
        whose, _, rest = key.partition(".")
        if whose not in ("general", "tokenizer", arch):
            raise ArgumentError(
                "kv_overrides", key, f"{arch}.{rest}", problem="is a key of other files"
            )
        if key.endswith("_token_id") and int(value) >= n_vocab:
            raise ArgumentError(
                f"kv_overrides[{key!r}]", value, f"the id of a token, below {n_vocab}"
            )


def _kind_of(value: object) -> int | None:
    """The type of a value, of Python or NumPy; None for no value of a key."""
    if isinstance(value, str):
        return _TEXT
    with contextlib.suppress(ArgumentError):
        boolean(value, "")
        return _BOOL
    with contextlib.suppress(ArgumentError):
        integer(value, "")
        return _INT
    return _REAL if isinstance(value, float) or hasattr(value, "__float__") else None


def _c_string(value: str, keep: list[Any]) -> Any:
    keep.append(ffi.new("char[]", value.encode()))
    return keep[-1]
