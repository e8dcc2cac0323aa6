"""Overrides the keys of a model's file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pyllama_spec.engine.binding import ffi
from pyllama_spec.engine.checks import FLOAT32_MAX, INT32_MAX, boolean, count, instance, real, text
from pyllama_spec.errors import ArgumentError

Override = bool | int | float | str

# The text size of the engine's struct, without the zero at the end.
_MAX_BYTES = 127
_INT, _REAL, _BOOL, _TEXT = range(4)
_LEAST, _TINY = -INT32_MAX - 1, 1e-38
# Keys that decide how texts are tokenized and how long, wide or sharp attention is, with the type
# that the engine reads and the bounds of what it computes with. Most of the rest describe how the
# weights lie in the file: another value there makes the engine read outside of them, or abort.
_KEYS = tuple(
    (re.compile(pattern), kind, low, high)
    for pattern, kind, low, high in (
        (r"general\.(name|description|author|url|license)", _TEXT, 0, 0),
        (r"tokenizer\.ggml\.pre|[\w-]+\.rope\.scaling\.type", _TEXT, 0, 0),
        (r"tokenizer\.ggml\.add_(bos_token|eos_token|sep_token|space_prefix)", _BOOL, 0, 0),
        (r"tokenizer\.ggml\.(remove_extra_whitespaces|normalizer\.\w+)", _BOOL, 0, 0),
        (r"[\w-]+\.(attention\.causal|rope\.scaling\.finetuned)", _BOOL, 0, 0),
        (r"[\w-]+\.(expert_weights_norm|use_parallel_residual)", _BOOL, 0, 0),
        (r"tokenizer\.ggml\.\w+_token_id", _INT, 0, INT32_MAX),
        (r"tokenizer\.ggml\.token_type_count", _INT, _LEAST, INT32_MAX),
        (r"[\w-]+\.(context_length|expert_used_count)", _INT, 1, INT32_MAX),
        (r"[\w-]+\.expert_gating_func", _INT, 1, 4),  # see llama_expert_gating_func_type
        (r"[\w-]+\.(attention\.sliding_window|pooling_type)", _INT, _LEAST, INT32_MAX),
        (r"[\w-]+\.rope\.scaling\.original_context_length", _INT, _LEAST, INT32_MAX),
        (r"[\w-]+\.rope\.(freq_base|freq_base_swa)", _REAL, _TINY, FLOAT32_MAX),
        (r"[\w-]+\.rope\.(scale_linear|scaling\.factor)", _REAL, 0, FLOAT32_MAX),
        (r"[\w-]+\.attention\.layer_norm(_rms)?_epsilon", _REAL, 0, FLOAT32_MAX),
        (r"[\w-]+\.rope\.scaling\.(alpha|attn_factor|yarn_\w+)", _REAL, -FLOAT32_MAX, FLOAT32_MAX),
        (r"[\w-]+\.attention\.(output_)?scale", _REAL, -FLOAT32_MAX, FLOAT32_MAX),
        (r"[\w-]+\.(attn|final)_logit_softcapping", _REAL, -FLOAT32_MAX, FLOAT32_MAX),
        (r"[\w-]+\.(logit|residual|embedding|expert_weights)_scale", _REAL, -FLOAT32_MAX,
         FLOAT32_MAX),
    )
)  # fmt: skip


def raw_overrides(overrides: Mapping[str, Override]) -> tuple[Any, list[Any]]:
    """The overrides as C structs, or NULL, and the memory that they point to."""
    instance(overrides, Mapping, "kv_overrides")
    array = ffi.new("struct llama_spec_override[]", max(len(overrides), 1))
    keep: list[Any] = [array]

    def c_text(value: str) -> Any:
        keep.append(ffi.new("char[]", value.encode()))
        return keep[-1]

    for raw, (key, value) in zip(array, overrides.items(), strict=False):
        read = _checked(key, value)
        raw.key = c_text(key)
        if isinstance(read, str):
            raw.kind, raw.text = _TEXT, c_text(read)
        elif isinstance(read, float):
            raw.kind, raw.real = _REAL, read
        else:
            raw.kind, raw.whole = _BOOL if isinstance(read, bool) else _INT, read
    return array if overrides else ffi.NULL, keep


def facts_of(overrides: Mapping[str, Override]) -> list[str]:
    """The overrides as the engine reads them, for an identity: 777 and 777.0 are the same."""
    return sorted(repr((key, _checked(key, value))) for key, value in overrides.items())


def _checked(key: str, value: object) -> Override:
    """The value as the engine reads it; refuses what it would not read, cut or abort at."""
    param = f"kv_overrides[{key!r}]"
    for pattern, kind, low, high in _KEYS:
        if pattern.fullmatch(text(key, "kv_overrides")) and len(key.encode()) <= _MAX_BYTES:
            if kind in (_INT, _REAL) and isinstance(value, (str, bool)):
                raise ArgumentError(param, value, "a number")
            found: Override
            if kind == _INT:
                found = count(value, param, int(low), int(high))
            elif kind == _REAL:
                found = real(value, param, low, high)
            else:
                found = boolean(value, param) if kind == _BOOL else text(value, param)
            if isinstance(found, str) and len(found.encode()) > _MAX_BYTES:
                raise ArgumentError(param, value, f"at most {_MAX_BYTES} bytes")
            return found
    raise ArgumentError(
        "kv_overrides", key, "one of the keys that this package takes, such as "
        "tokenizer.ggml.add_bos_token, ARCH.context_length, ARCH.rope.freq_base and "
        "ARCH.expert_used_count",
    )  # fmt: skip


def check_fits(overrides: Mapping[str, Override], arch: str, n_vocab: int) -> None:
    """Refuses what the engine would ignore: keys of other files, and tokens that do not exist."""
    for key, value in overrides.items():
        whose, _, rest = key.partition(".")
        if whose not in ("general", "tokenizer", arch):
            raise ArgumentError("kv_overrides", key, f"a key of this file, such as {arch}.{rest}")
        if key.endswith("_token_id"):
            count(value, f"kv_overrides[{key!r}]", 0, n_vocab - 1)
